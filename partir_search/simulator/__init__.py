"""Costs of a device-local program: seconds, bytes, flops."""
