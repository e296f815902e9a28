"""Rewrites of whole programs, a module in and a module out."""
