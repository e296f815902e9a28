"""Live bytes on one device: what is stored, in what width, and for how long."""
