"""The real compilers, ahead of time: targets, what they make of a plan, and how it is read."""
