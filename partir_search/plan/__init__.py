"""What a plan is, and what can be asked of it."""
