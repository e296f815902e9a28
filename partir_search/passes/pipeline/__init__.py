"""Pipelines: a loop over microbatches becomes a loop over the ticks of a lockstep schedule."""
