"""What follows from a module and its rules alone: users, rows of axes, pending sums."""
