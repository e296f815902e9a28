"""Search engine over games: tree search, annealing and enumeration, free of compiler code."""
