"""Shardings fixed by the user, as actions."""
