"""Folding: repeated ops of a program are replaced by one representative."""
