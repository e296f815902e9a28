"""Seconds of one step: kernels, collectives, and what hides behind what."""
