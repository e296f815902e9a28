"""Kinds of values for random programs (`tests/programs.py`), a file for each."""
