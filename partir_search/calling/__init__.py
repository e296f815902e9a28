"""Conversion of a user's call to a call of a function of arrays."""
