"""Facts that follow from a module and its rules alone: users, rows of axes, pending sums."""
