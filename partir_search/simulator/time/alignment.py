"""Rates of matrix products whose operands' rows do not start at aligned addresses.

Rows of an array with a last dim of n elements of b bytes start n b bytes apart. Products with an
operand or result of another stride than a multiple of `XlaTraits.product_alignment_bytes` run at
`XlaTraits.misaligned_product_rate` of the rate of aligned ones.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from partir_search.ir.core import Module, Value
from partir_search.ir.partition import Partition
from partir_search.ir.rule import OpRule
from partir_search.simulator.arrays import Bools, Floats, Ints
from partir_search.simulator.target.traits import XlaTraits
from partir_search.simulator.time.kernels import Kernels
from partir_search.simulator.time.local_sizes import LocalSizes


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Alignment:
    """Alignment of P products of a module.

    Attributes:
      kernel: [P] numbers of their kernels.
      sizes: extents of the products' factors.
      last: [P, arrays] factor of the last dim of each operand and result, or -1.
      elements: [P, arrays] elements of a stride that is aligned.
      rate: of products that are not aligned, as a share of the rate of others.
      place: by number of a kernel, its place among the products.
    """

    kernel: Ints
    sizes: LocalSizes
    last: Ints
    elements: Ints
    rate: float
    place: dict[int, int]

    def reduced(self, rates: Floats, partition: Partition) -> Floats:
        """Rates with unaligned products at `rate` of theirs.

        Args:
          rates: [K] flops per second of each kernel.

        Returns:
          [K] flops per second under the partition.
        """
        found = rates.copy()
        odd = self._odd(self.sizes.local(partition), self.last, self.elements)
        found[self.kernel[odd]] *= self.rate
        return found

    def share_at(self, kernel: int, loops: Ints, mesh_sizes: Sequence[int]) -> Floats:
        """[...] share of the rate of a product under [..., axes] loops of its op."""
        i = self.place[kernel]
        local = self.sizes.at(i, loops, mesh_sizes)
        return np.where(self._odd(local, self.last[i], self.elements[i]), self.rate, 1.0)

    def _odd(self, local: Ints, last: Ints, elements: Ints) -> Bools:
        """[...] True for products with [..., factors] sizes that are not aligned."""
        at = np.broadcast_to(last, (*local.shape[:-1], last.shape[-1]))
        strides = np.take_along_axis(local, np.maximum(at, 0), axis=-1)
        found: Bools = ((at >= 0) & (strides % elements != 0)).any(axis=-1)
        return found


def alignment(
    module: Module, rules: Sequence[OpRule], kernels: Kernels, traits: XlaTraits
) -> Alignment | None:
    """Alignment of a module's products of two operands; None where it changes no rate.

    Args:
      rules: per op id.
    """
    if traits.misaligned_product_rate == 1.0:
        return None
    rows = []
    for k, op_id in enumerate(kernels.op.tolist()):
        rule, op = rules[op_id], module.ops[op_id]
        if not rule.contracts or len(rule.operands) != 2 or rule.blockwise or rule.reads:
            continue
        pairs = zip((*rule.operands, *rule.results), (*op.operands, *op.results), strict=True)
        arrays = [(dims[-1], v.type) for dims, v in pairs if dims and isinstance(v, Value)]
        rows.append((k, [(f, traits.product_alignment_bytes // t.itemsize) for f, t in arrays]))
    if not rows:
        return None
    kernel = np.array([k for k, _ in rows], dtype=np.int64)
    last = np.full((len(rows), max(len(ends) for _, ends in rows)), -1, dtype=np.int64)
    elements = np.ones_like(last)
    for i, (_, ends) in enumerate(rows):
        for j, (factor, aligned) in enumerate(ends):
            last[i, j], elements[i, j] = factor, max(aligned, 1)
    sizes = LocalSizes.of(module, rules, kernels.op[kernel])
    place = {k: i for i, k in enumerate(kernel.tolist())}
    return Alignment(kernel, sizes, last, elements, traits.misaligned_product_rate, place)
