"""Rates of convolutions with few features.

A convolution runs at n / (n + h) of the rate of a product, with n the features of the input or of
the result on one device, the fewer of both, and h `XlaTraits.half_rate_features`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from partir_search.ir.core import Module
from partir_search.ir.partition import Partition
from partir_search.ir.rule import OpRule
from partir_search.simulator.arrays import Floats, Ints
from partir_search.simulator.target.traits import XlaTraits
from partir_search.simulator.time.kernels import Kernels
from partir_search.simulator.time.local_sizes import LocalSizes


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class NarrowFeatures:
    """Features of P convolutions of a module.

    Attributes:
      kernel: [P] numbers of their kernels.
      sizes: extents of the convolutions' factors.
      features: [P, 2] factors of the features.
      half: features with which a convolution runs at half of a product's rate.
      place: by number of a kernel, its place among the convolutions.
    """

    kernel: Ints
    sizes: LocalSizes
    features: Ints
    half: int
    place: dict[int, int]

    def reduced(self, rates: Floats, partition: Partition) -> Floats:
        """[K] flops per second of each kernel under a partition.

        Args:
          rates: [K] of products.
        """
        found = rates.copy()
        found[self.kernel] *= self._share(self.sizes.local(partition), self.features)
        return found

    def share_at(self, kernel: int, loops: Ints, mesh_sizes: Sequence[int]) -> Floats:
        """[...] share of the rate of a convolution under [..., axes] loops of its op."""
        i = self.place[kernel]
        return self._share(self.sizes.at(i, loops, mesh_sizes), self.features[i])

    def _share(self, local: Ints, features: Ints) -> Floats:
        """[...] shares of convolutions with [..., factors] sizes."""
        at = np.broadcast_to(features, (*local.shape[:-1], features.shape[-1]))
        fewest = np.take_along_axis(local, at, axis=-1).min(axis=-1)
        found: Floats = fewest / (fewest + self.half)
        return found


def narrow_features(
    module: Module, rules: Sequence[OpRule], kernels: Kernels, traits: XlaTraits
) -> NarrowFeatures | None:
    """Features of a module's convolutions; None without an effect on rates.

    Args:
      rules: per op id.
    """
    found = [k for k, op_id in enumerate(kernels.op.tolist()) if rules[op_id].features]
    if not traits.half_rate_features or not found:
        return None
    kernel = np.array(found, dtype=np.int64)
    sizes = LocalSizes.of(module, rules, kernels.op[kernel])
    features = np.array([rules[op_id].features for op_id in kernels.op[kernel].tolist()])
    place = {k: i for i, k in enumerate(found)}
    return NarrowFeatures(kernel, sizes, features, traits.half_rate_features, place)
