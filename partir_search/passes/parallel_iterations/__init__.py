"""Iterations of scans that devices may share: `lax.map`, sums over examples, chunks of a loss."""

from partir_search.passes.parallel_iterations.independent import IndependentScan, independent
from partir_search.passes.parallel_iterations.module import with_parallel_iterations

__all__ = ["IndependentScan", "independent", "with_parallel_iterations"]
