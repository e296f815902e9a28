"""Programs of kinds that users reported, each against the plain function."""
