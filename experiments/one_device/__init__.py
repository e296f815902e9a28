"""Whole steps and their kernels on one device, measured and predicted."""
