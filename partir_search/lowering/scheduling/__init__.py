"""Order and layouts of a device-local program, where a compiler is not left to choose them."""
