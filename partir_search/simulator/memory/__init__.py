"""Memory of one device: stored values, storage dtypes, live ranges and live bytes."""
