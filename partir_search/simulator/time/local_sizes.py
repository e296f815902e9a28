"""Extents of ops' factors on one device, for many ops at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from partir_search.ir.core import Module
from partir_search.ir.partition import Partition
from partir_search.ir.rule import OpRule
from partir_search.simulator.arrays import Ints


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class LocalSizes:
    """Extents of the factors of N ops.

    Attributes:
      op: [N] op ids.
      sizes: [N, factors] unpartitioned extents, at least 1; 0 beyond the factors of an op.
    """

    op: Ints
    sizes: Ints

    @classmethod
    def of(cls, module: Module, rules: Sequence[OpRule], op: Ints) -> LocalSizes:
        """Extents of some ops; of an op without factors, the dims of its first result.

        Args:
          rules: per op id.
          op: [N] op ids.
        """
        rows = []
        for op_id in op.tolist():
            results = module.ops[op_id].results
            rows.append(rules[op_id].sizes or (results[0].type.shape if results else ()))
        sizes = np.zeros((len(rows), max(map(len, rows), default=0)), dtype=np.int64)
        for row, found in zip(sizes, rows, strict=True):
            row[: len(found)] = np.maximum(found, 1)
        return cls(op, sizes)

    def local(self, partition: Partition) -> Ints:
        """[N, factors] extents on one device under a partition."""
        found = self.sizes.copy()
        for rows, size in zip(partition.axes, partition.mesh.sizes, strict=True):
            factor = rows.loop_row[self.op]
            at = np.flatnonzero(factor >= 0)
            found[at, factor[at]] = -(-found[at, factor[at]] // size)
        return found

    def at(self, n: int, loops: Ints, mesh_sizes: Sequence[int]) -> Ints:
        """[..., factors] extents of op number `n` on one device, under given loops.

        Args:
          loops: [..., axes] factors; negative for none.
        """
        found = np.broadcast_to(self.sizes[n], (*loops.shape[:-1], self.sizes.shape[1])).copy()
        flat, codes = found.reshape(-1, found.shape[-1]), loops.reshape(-1, loops.shape[-1])
        for a, size in enumerate(mesh_sizes):
            at = np.flatnonzero(codes[:, a] >= 0)
            flat[at, codes[at, a]] = -(-flat[at, codes[at, a]] // size)
        return flat.reshape(found.shape)
