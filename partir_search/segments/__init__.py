"""Segments of a plan: unique stretches of the device-local program, cut, run and measured alone."""
