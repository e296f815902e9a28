"""Shardings that the user fixed, as actions."""
