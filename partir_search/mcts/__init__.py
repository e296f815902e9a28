"""Search: an engine that knows no compiler."""
