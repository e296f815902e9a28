"""Rates of matrix products by type and shape on one device, from measured products.

The class of a product is the nearest measured product of its type, by the logarithms of batch, m, n
and k; m and n may be exchanged. Products of a type without measurements, and contractions of
another form than one matrix product, have the machine's rate.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from partir_search.ir.core import Module
from partir_search.ir.partition import Partition
from partir_search.ir.rule import OpRule
from partir_search.profile.entries import MeasuredProduct
from partir_search.simulator.arrays import Floats, Ints
from partir_search.simulator.time.kernels import Kernels
from partir_search.simulator.time.local_sizes import LocalSizes

BATCH, M, N, K = range(4)


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class ProductRates:
    """Rates of P products of a module.

    Attributes:
      kernel: [P] numbers of their kernels.
      sizes: extents of the products' factors.
      roles: [P, factors] BATCH, M, N or K of each factor, or -1.
      dtype: [P] number of the type among `shapes` and `rates`.
      shapes: by type, [samples, 4] logarithms of measured (batch, m, n, k).
      rates: by type, [samples] measured flops per second.
      place: by number of a kernel, its place among the products.
    """

    kernel: Ints
    sizes: LocalSizes
    roles: Ints
    dtype: Ints
    shapes: Sequence[Floats]
    rates: Sequence[Floats]
    place: dict[int, int]

    def replaced(self, rates: Floats, partition: Partition) -> Floats:
        """[K] rates of kernels, with those of products under a partition."""
        found, logs = rates.copy(), _logs(self.sizes.local(partition), self.roles)
        for d in range(len(self.rates)):
            own = np.flatnonzero(self.dtype == d)
            found[self.kernel[own]] = self._nearest(d, logs[own])
        return found

    def rates_at(self, kernel: int, loops: Ints, mesh_sizes: Sequence[int]) -> Floats:
        """[...] rates of a product under [..., axes] loops of its op."""
        i = self.place[kernel]
        local = self.sizes.at(i, loops, mesh_sizes)
        return self._nearest(int(self.dtype[i]), _logs(local, self.roles[i]))

    def _nearest(self, dtype: int, logs: Floats) -> Floats:
        """[...] rates of the nearest samples to [..., 4] logarithms of shapes."""
        distance = np.abs(logs[..., None, :] - self.shapes[dtype]).sum(axis=-1)
        found: Floats = self.rates[dtype][distance.argmin(axis=-1)]
        return found


def product_rates(
    module: Module,
    rules: Sequence[OpRule],
    kernels: Kernels,
    measured: Sequence[MeasuredProduct],
) -> ProductRates | None:
    """Rates of a module's products; None without any.

    Args:
      rules: per op id.
    """
    types = list(dict.fromkeys(p.dtype for p in measured))
    rows = [
        (k, found, types.index(kernels.dtype[k]))
        for k, op_id in enumerate(kernels.op.tolist())
        if kernels.dtype[k] in types and (found := _roles(rules[op_id])) is not None
    ]
    if not rows:
        return None
    kernel = np.array([k for k, _, _ in rows], dtype=np.int64)
    sizes = LocalSizes.of(module, rules, kernels.op[kernel])
    roles = np.full(sizes.sizes.shape, -1, dtype=np.int64)
    for row, (_, own, _) in zip(roles, rows, strict=True):
        row[: len(own)] = own
    shapes, rates = [], []
    for name in types:
        own_type = [p for p in measured if p.dtype == name]
        both = {(p.shape[0], m, n, p.shape[3]): p for p in own_type for m, n in _orders(p)}
        shapes.append(np.log2(np.array(list(both), dtype=np.float64)))
        rates.append(np.array([p.flops_per_s for p in both.values()]))
    dtype = np.array([d for _, _, d in rows], dtype=np.int64)
    return ProductRates(
        kernel, sizes, roles, dtype, shapes, rates, {k: i for i, k in enumerate(kernel.tolist())}
    )


def _orders(product: MeasuredProduct) -> tuple[tuple[int, int], tuple[int, int]]:
    _, m, n, _ = product.shape
    return (m, n), (n, m)


def _roles(rule: OpRule) -> list[int] | None:
    """Role of each factor of a matrix product; None for ops of another form."""
    if not rule.contracts or len(rule.operands) != 2 or len(rule.results) != 1 or rule.blockwise:
        return None
    inside = [
        [rule.dim_of(dims, f) >= 0 for dims in (*rule.operands, *rule.results)]
        for f in range(len(rule.sizes))
    ]
    return [
        K if not made else BATCH if one and other else M if one else N
        for one, other, made in inside
    ]


def _logs(sizes: Ints, roles: Ints) -> Floats:
    """[..., 4] logarithms of batch, m, n and k of [..., factors] sizes."""
    logs = np.log2(np.maximum(sizes, 1))
    found: Floats = np.stack(
        [np.where(roles == role, logs, 0.0).sum(axis=-1) for role in range(4)], axis=-1
    )
    return found
