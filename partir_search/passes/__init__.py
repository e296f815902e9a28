"""Rewrites of whole programs: each takes a module and returns a module."""
