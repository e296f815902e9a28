"""Folding: one representative for the ops that a program repeats."""
