"""Modules of the jaxpr reader behind `ir/from_jaxpr.py`. They may name primitives."""
