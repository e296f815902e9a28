"""Closed forms of parallel training, with units and sources, each held against the simulator.

"Lecture" is lecture 8 of CS 2281, "Parallelization" (Kakade and Anand, Harvard, fall 2024), by the
titles of its slides. Corrections of its formulas are named in the docstrings.
"""
