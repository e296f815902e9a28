"""How a decision spreads through a program."""
