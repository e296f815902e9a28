"""Rates of kernels that depend on the extents of their factors on one device."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from partir_search.ir.core import Module
from partir_search.ir.partition import Partition
from partir_search.ir.rule import OpRule
from partir_search.simulator.arrays import Floats, Ints
from partir_search.simulator.time.kernels import Kernels
from partir_search.simulator.time.local_sizes import LocalSizes

Share = Callable[[Ints, Ints], Floats]
"""Shares [...] of a rate by extents [..., factors] on one device and figures of the kernels."""


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class LocalRates:
    """Shares of the rates of P kernels.

    Attributes:
      kernel: [P] numbers of the kernels.
      sizes: extents of the factors of their ops.
      figures: [P, ...] figures for `share`.
      share: of a kernel's rate.
      place: by number of a kernel, the place in `kernel`.
    """

    kernel: Ints
    sizes: LocalSizes
    figures: Ints
    share: Share
    place: dict[int, int]

    @classmethod
    def of(
        cls,
        module: Module,
        rules: Sequence[OpRule],
        kernels: Kernels,
        found: Sequence[int],
        figures: Ints,
        share: Share,
    ) -> LocalRates:
        """Shares of kernels of a module.

        Args:
          rules: per op id.
          found: [P] numbers of the kernels.
          figures / share: as in the attributes.
        """
        kernel = np.array(found, dtype=np.int64)
        sizes = LocalSizes.of(module, rules, kernels.op[kernel])
        return cls(kernel, sizes, figures, share, {k: i for i, k in enumerate(found)})

    def reduced(self, rates: Floats, partition: Partition) -> Floats:
        """[K] flops per second of each kernel under a partition.

        Args:
          rates: [K] flops per second with a share of 1.
        """
        found = rates.copy()
        found[self.kernel] *= self.share(self.sizes.local(partition), self.figures)
        return found

    def share_at(self, kernel: int, loops: Ints, mesh_sizes: Sequence[int]) -> Floats:
        """[...] share of the rate of a kernel under [..., axes] loops of its op."""
        i = self.place[kernel]
        return self.share(self.sizes.at(i, loops, mesh_sizes), self.figures[i])


def extents(local: Ints, factors: Ints) -> Ints:
    """[..., n] extents of some factors of ops.

    Args:
      local: [..., factors] extents.
      factors: [n], or [..., n], places of factors.
    """
    at = np.broadcast_to(factors, (*local.shape[:-1], factors.shape[-1]))
    found: Ints = np.take_along_axis(local, at, axis=-1)
    return found
