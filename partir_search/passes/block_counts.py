"""Ops computed within blocks of a dim first, and then over blocks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from partir_search.ir.core import Module, Op, Region
from partir_search.ir.mesh import MeshShape
from partir_search.passes.rewriter import Rewriter


def most_blocks(size: int, mesh: MeshShape, min_elements: int) -> int:
    """Largest number of tiles of a dim of `size` elements; 0 if the mesh cannot tile the dim.

    Each mesh axis tiles the blocks by all of its devices or not at all: no sub-axes arise.

    Args:
      min_elements: fewest elements of a block.
    """
    sizes = mesh.device_sizes
    devices = math.prod(sizes)
    for t in range(min(devices, size // min_elements), 1, -1):
        if devices % t == 0 == size % t and all(math.gcd(t, each) in (1, each) for each in sizes):
            return t
    return 0


def in_blocks(
    module: Module, blocks: Mapping[int, int], write: Callable[[Op, int], list[Op]]
) -> Module:
    """The module with some ops in blocks; the same one without any.

    Args:
      blocks: number of blocks by id of an op; 0 to keep the op.
      write: function from an op and a number of blocks to ops with the same results.
    """
    return _InBlocks(module, blocks, write).run() if any(blocks.values()) else module


class _InBlocks(Rewriter):
    """Writes ops in blocks, see `in_blocks`."""

    def __init__(
        self, module: Module, blocks: Mapping[int, int], write: Callable[[Op, int], list[Op]]
    ) -> None:
        super().__init__(module)
        self._blocks, self._write = blocks, write

    def ops(self, old: Region) -> list[Op]:
        found: list[Op] = []
        for op in old.ops:
            count, new = self._blocks.get(op.id, 0), self.op(op)
            found += self._write(new, count) if count else [new]
        return found
