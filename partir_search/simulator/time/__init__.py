"""Time of one step: fusion, kernels, roofline, collectives, and their overlap."""
