"""Least padding of stored values over all orders of dims (`XlaTraits.tile_lanes`).

XLA:TPU stores an array in tiles of 8 x 128 elements of two dims, and mostly chooses the two dims
of the least padding: for 69 % of 2,731 results of kernels, in 82 programs for v5e, padded more in
row-major order. An array without a dim of a multiple of 128, as of images of 56 x 56
with 192 channels and 8 in a batch, is padded in every order.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Sequence

import numpy as np

from partir_search.ir.core import Value
from partir_search.ir.mesh import MeshShape
from partir_search.ir.partition import Partition
from partir_search.simulator.arrays import Bools, Floats, Ints

LEAST_BYTES = 1 << 16  # of a value whose padding counts
MAX_TILINGS = 512  # of one shape on a mesh, that are tried to see whether the shape needs padding


@dataclasses.dataclass(frozen=True, eq=False)
class LeastPadding:
    """Values stored in the order of dims that pads least.

    Attributes:
      ids: [N] ids of the values.
      sizes: [D, N] sizes of the dims, 0 beyond a value's rank.
      sublanes / lanes: elements of a tile.
    """

    ids: Ints
    sizes: Floats
    sublanes: int
    lanes: int

    @functools.cached_property
    def _number(self) -> dict[int, int]:
        return {v: n for n, v in enumerate(self.ids.tolist())}

    @functools.cached_property
    def _of_mesh(self) -> dict[tuple[int, ...], tuple[Ints, Floats]]:
        return {}

    def __contains__(self, v: int) -> bool:
        return v in self._number

    def factors(self, partition: Partition) -> tuple[Ints, Floats]:
        """Ids of the values that may be padded on the partition's mesh, and padded over local
        bytes of each.
        """
        ids, local = self._padded_on(partition.mesh)
        if not len(ids):
            return ids, np.ones(0)
        local, columns = local.copy(), np.arange(len(ids))
        for rows, size in zip(partition.axes, partition.mesh.sizes, strict=True):
            tiles = rows.tile_row[ids]
            tiled = tiles >= 0
            local[tiles[tiled], columns[tiled]] /= size
        return ids, self._least(local)

    def of_codes(self, v: int, codes: Ints, mesh_sizes: Floats) -> Floats:
        """[...] padded bytes over bytes of a value tiled by [..., axes] codes."""
        local = [
            size / np.prod(np.where(codes == dim, mesh_sizes, 1.0), axis=-1)
            for dim, size in enumerate(self.sizes[:, self._number[v]].tolist())
        ]
        return self._least(np.array(local))

    def _padded_on(self, mesh: MeshShape) -> tuple[Ints, Floats]:
        """Ids and sizes of the values with a tiling on the mesh that needs padding."""
        found = self._of_mesh.get(mesh.sizes)
        if found is None:
            shapes, which = np.unique(self.sizes, axis=1, return_inverse=True)
            needs = np.array([self._needs(shape, mesh.sizes) for shape in shapes.T], dtype=np.bool_)
            at = np.flatnonzero(needs[which.reshape(-1)])
            found = self._of_mesh[mesh.sizes] = self.ids[at], self.sizes[:, at]
        return found

    def _needs(self, shape: Floats, mesh: Sequence[int]) -> bool:
        """True if one of the tilings of a shape on a mesh needs padding."""
        if (1 + len(shape)) ** len(mesh) > MAX_TILINGS:
            return True
        tilings = np.array(list(itertools.product(range(-1, len(shape)), repeat=len(mesh))))
        sizes = np.array(mesh, dtype=np.float64)
        local = np.array(
            [
                size / np.prod(np.where(tilings == dim, sizes, 1.0), axis=1)
                for dim, size in enumerate(shape.tolist())
            ]
        )
        whole: Bools = (local == np.floor(local)).all(axis=0)
        return bool((self._least(local[:, whole]) > 1.0).any())

    def _least(self, local: Floats) -> Floats:
        """[...] least padded over local elements of all orders, given [D, ...] local sizes."""
        across = _filled(local, np.float64(self.lanes))
        few = 2.0 ** np.ceil(np.log2(np.maximum(local, 1.0)))
        along = _filled(local, np.minimum(self.sublanes, few))
        least, second = np.partition(along, 1, axis=0)[:2]
        others = np.where(along > least, least, second)  # least of the further dims
        found: Floats = np.min(across * others, axis=0)
        return found


def least_padding(values: Iterable[Value], sublanes: int, lanes: int) -> LeastPadding:
    """Padding of values; small ones and vectors have none."""
    held = [v for v in values if v.type.nbytes >= LEAST_BYTES and _is_matrix(v.type.shape)]
    rank = max((len(v.type.shape) for v in held), default=2)
    sizes = [(*v.type.shape, *[0] * (rank - len(v.type.shape))) for v in held]
    return LeastPadding(
        ids=np.array([v.id for v in held], dtype=np.int64),
        sizes=np.array(sizes, dtype=np.float64).reshape(len(held), rank).T,
        sublanes=sublanes,
        lanes=lanes,
    )


def _filled(local: Floats, tile: Floats | np.float64) -> Floats:
    """Elements of whole tiles over elements of a dim, infinite for dims beyond a value's rank."""
    found: Floats = np.ceil(local / tile) * tile / np.maximum(local, np.finfo(np.float64).tiny)
    return np.where(local > 0, found, np.inf)


def _is_matrix(shape: Sequence[int]) -> bool:
    return sum(size > 1 for size in shape) > 1
