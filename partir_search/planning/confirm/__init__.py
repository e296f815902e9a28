"""Confirmation of plans by a compiler: finalists are compiled, the best by its figures wins."""
