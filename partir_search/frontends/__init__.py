"""Libraries whose objects are arguments of steps: how a call of objects becomes one of arrays."""
