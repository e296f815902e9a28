"""Number of blocks of a dim for ops computed within blocks first, and then over blocks."""

from __future__ import annotations

import math

from partir_search.ir.mesh import MeshShape


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
