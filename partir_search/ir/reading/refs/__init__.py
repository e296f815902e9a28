"""Mutable refs read as values."""
