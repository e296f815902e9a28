"""Targets: figures of machines, and traits of their compilers."""
