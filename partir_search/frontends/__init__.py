"""Front ends: calls with objects of a library (modules, refs) as calls with arrays."""
