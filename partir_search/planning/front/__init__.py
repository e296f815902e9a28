"""Pareto front of seconds and peak bytes of a plan's program, for `Plan.front`."""
