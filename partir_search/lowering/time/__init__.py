"""Loops over a time axis: a program over a batch as a loop over parts of the batch."""
