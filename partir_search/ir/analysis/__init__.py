"""Facts of a module and its rules: def-use, rows of axes, deferred reductions."""
