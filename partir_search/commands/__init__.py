"""Parts of the command `partir-search`."""
