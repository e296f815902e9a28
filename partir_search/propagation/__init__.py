"""Propagation of decisions through a program."""
