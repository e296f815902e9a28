"""Exact minimisation of pairwise models, and lower bounds of their minima; numpy only."""
