"""Search: an engine that knows no compiler, and the game that it plays with ours."""
