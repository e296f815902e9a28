"""From a partition to the device-local program and to jax."""
