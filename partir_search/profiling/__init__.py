"""Measurements for profiles: of a machine, and of the segments of plans until one is measured."""
