"""Equal programs on arrays of one shape, computed once for a stack of the arrays."""

from partir_search.passes.stacks.find import Stack, find_stacks
from partir_search.passes.stacks.module import stack_module

__all__ = ["Stack", "find_stacks", "stack_module"]
