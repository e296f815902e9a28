"""Parts of the jaxpr reader, of which `ir/from_jaxpr.py` is the front. They know primitives."""
