"""Errors and warnings for options, schedules and batches, before any search runs."""
