"""Known strategies, applied by hand in practice, as moves on the graph of any model."""
