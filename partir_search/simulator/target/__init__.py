"""Chips and networks: what the simulator knows of a target."""
