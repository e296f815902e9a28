"""Modules of values, ops and regions; rules and partitions; printer, verifier and interpreter."""
