"""Order and layouts prescribed to a target's compiler, as passes on a device-local program."""
