"""Text of a partition: loops, names, attributes, blocks of scopes."""
