"""Profiles: measured figures of a machine, by content, in one file that serves all programs."""
