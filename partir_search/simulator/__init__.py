"""What a device-local program costs: seconds, bytes, flops."""
