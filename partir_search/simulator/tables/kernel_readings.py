"""Pairwise readings of kernels: exact where a kernel depends on two variables or fewer, and linear
minorants elsewhere.

`max(dots, vectors + moves)` is at least each of its sides, whatever the labels, and equal to the
larger one. So the side that is larger at a labelling gives costs that are exact there and never
too large elsewhere.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence

import numpy as np

from partir_search.exact.pairwise import ModelBuilder
from partir_search.ir.rule import NONE
from partir_search.simulator.arrays import Floats
from partir_search.simulator.tables.kernels import KernelTables, Split
from partir_search.simulator.tables.sums import Sum, Term

Coefficients = tuple[int, int, int, int, int]
"""Of dots, vectors, own traffic, fused traffic, and traffic of the reduced sums."""

Side = tuple[Coefficients, Floats]
"""Coefficients, and [labels] seconds besides."""

WHOLE: dict[
    bool, tuple[Coefficients, Coefficients]
] = {  # sides of a kernel that is not split, by whether it is a dot of many matrices
    False: ((1, 0, 0, 0, 0), (0, 1, 1, 1, 0)),
    True: ((1, 0, 1, 1, 0), (0, 1, 1, 1, 0)),
}
"""Sides of a kernel that is not split; True: a dot of many matrices."""


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Reading:
    """A kernel as terms of a pairwise model, and a constant."""

    constant: float
    terms: Sequence[Term]

    def add_to(self, builder: ModelBuilder) -> None:
        """Adds the kernel to a model."""
        builder.constant += self.constant
        for scope, table in self.terms:
            builder.add(scope, table)


class KernelReadings:
    """Readings of kernels at labellings: a kernel is read once per labels of its own variables.

    Attributes:
      variables: [kernels] variables of each.
    """

    def __init__(self, kernels: Sequence[KernelTables], sizes: Sequence[int]) -> None:
        """Readings of kernels over variables with `sizes` labels."""
        self._kernels, self._sizes = kernels, sizes
        self.variables = [sorted(kernel.variables) for kernel in kernels]
        self._known: list[dict[Hashable, Reading]] = [{} for _ in kernels]

    def read(self, number: int, labels: Sequence[int], *, exact: bool) -> Reading:
        """Reading of a kernel by number; arguments as of `read_kernel`.

        A kernel over at most two variables has the same reading at all labels.
        """
        variables = self.variables[number]
        key: Hashable = NONE
        if len(variables) > 2:
            key = exact, *[labels[x] for x in variables]
        found = self._known[number].get(key)
        if found is None:
            found = read_kernel(self._kernels[number], labels, self._sizes, exact=exact)
            self._known[number][key] = found
        return found


def read_kernel(
    kernel: KernelTables, labels: Sequence[int], sizes: Sequence[int], *, exact: bool
) -> Reading:
    """Reading of a kernel.

    Args:
      labels: at which the larger sides are taken.
      exact: tables over two other variables are read at the labels; else costs are minorants for
        all labels.
    """
    variables = sorted(kernel.variables)
    components = _components(kernel)
    constant = 0.0 if kernel.ratio else kernel.start
    if len(variables) <= 2:
        over = [component.over(variables, sizes) for component in components]
        sides = [_side(side, over) for side in WHOLE[kernel.batched]]
        total = np.maximum(*sides)
        if kernel.split:
            shape = [sizes[x] if x == kernel.split.variable else 1 for x in variables]
            ways = [
                _side(coefficients, over) + constants.reshape(shape)
                for coefficients, constants in _split_sides(kernel.batched, kernel.split)
            ]
            longer = np.maximum(total, np.maximum(*ways))
            total = np.where(kernel.split.splits.reshape(shape) > 0, longer, total)
        if kernel.ratio:
            total = (total + kernel.start) * kernel.ratio.over(variables, sizes)
        return Reading(constant, [(tuple(variables), total)])
    at = [np.array(component.at(labels)) for component in components]
    base = max(WHOLE[kernel.batched], key=lambda side: float(_side(side, at)))
    if kernel.split:
        along, coefficients, besides = _split_sums(kernel, kernel.split, labels, sizes, base)
    else:
        along = (
            min(kernel.ratio.variables) if kernel.ratio and kernel.ratio.variables else variables[0]
        )
        coefficients = np.tile(np.array(base, dtype=np.float64), (sizes[along], 1))
        besides = np.zeros(sizes[along])
    factors = np.ones(sizes[along])
    if kernel.ratio:
        factors = _ratio_along(kernel.ratio, along, sizes[along], labels, exact=exact)
        besides = besides + kernel.start
    least = float(np.min(factors))
    terms: list[Term] = [((along,), besides * factors)]
    for component, usual, each in zip(components, base, coefficients.T, strict=True):
        if usual:
            tables = component.tables.items()
            terms += [(x, t * least) for x, t in tables] if kernel.ratio else list(tables)
        more = each * factors - usual * least
        if more.any():
            terms += component.scaled(along, more, labels if exact else None)
    return Reading(constant, terms)


def _ratio_along(
    ratio: Sum, variable: int, size: int, labels: Sequence[int], *, exact: bool
) -> Floats:
    """[labels of a variable] ratios: at the labels of the others, or the least over the others."""
    if exact:
        return ratio.along(variable, size, labels)
    ((scope, table),) = ratio.tables.items()
    axes = tuple(i for i, x in enumerate(scope) if x != variable)
    found: Floats = np.broadcast_to(np.min(table, axis=axes), (size,))
    return found


def _components(kernel: KernelTables) -> tuple[Sum, ...]:
    reduced = kernel.split.reduced if kernel.split else Sum()
    return kernel.dots, kernel.vectors, kernel.own, kernel.fused, reduced


def _side(coefficients: Coefficients, components: list[Floats]) -> Floats:
    total = np.zeros(())
    for c, component in zip(coefficients, components, strict=True):
        if c:
            total = total + c * component
    return total


def _split_sides(batched: bool, split: Split) -> list[Side]:
    """Sides of a kernel that is split: coefficients of components, and [labels] seconds besides."""
    first = split.partial_moves  # the dot's kernel, beside its own traffic
    lead = int(split.leads)
    after = lead - int(split.stored)
    constant = np.full(len(first), lead * split.start)
    if batched:
        dots: Side = (1, lead, 1, lead, after), constant + first
    else:
        dots = (1, lead, 0, lead, lead), constant
    return [dots, ((0, lead, 1, lead, after), constant + first + split.partial_vectors)]


def _split_sums(
    kernel: KernelTables,
    split: Split,
    labels: Sequence[int],
    sizes: Sequence[int],
    base: Coefficients,
) -> tuple[int, Floats, Floats]:
    """Variable of a split, [labels, components] coefficients and [labels] seconds besides.

    Args:
      labels: at which the larger sides are taken.
      base: side of the kernel where it is not split.
    """
    q = split.variable
    along = [component.along(q, sizes[q], labels) for component in _components(kernel)]
    sides: list[Side] = [(side, np.zeros(sizes[q])) for side in WHOLE[kernel.batched]]
    sides += _split_sides(kernel.batched, split)
    values = np.stack([_side(side, along) + constant for side, constant in sides])
    usual_side = WHOLE[kernel.batched].index(base)
    chosen = np.where(split.splits > 0, values.argmax(axis=0), usual_side)
    coefficients = np.array([side for side, _ in sides], dtype=np.float64)[chosen]
    constants = np.stack([constant for _, constant in sides])
    return q, coefficients, np.take_along_axis(constants, chosen[None], axis=0)[0]
