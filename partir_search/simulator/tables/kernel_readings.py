"""Pairwise readings of kernels: exact where a kernel depends on two variables or fewer, and linear
minorants elsewhere.

`max(dots, vectors + moves)` is at least each of its sides, whatever the labels, and equal to the
larger one. So the side that is larger at a labelling gives costs that are exact there and never
too large elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from partir_search.exact.pairwise import ModelBuilder
from partir_search.simulator.arrays import Floats, Ints
from partir_search.simulator.tables.kernels import KernelTables, Split
from partir_search.simulator.tables.sums import Sum, add_to

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


def read_kernel(
    kernel: KernelTables, builder: ModelBuilder, labels: Ints, sizes: Sequence[int], *, exact: bool
) -> None:
    """Adds a kernel to a model.

    Args:
      labels: at which the larger sides are taken.
      exact: tables over two other variables are read at the labels; else costs are minorants for
        all labels.
    """
    variables = sorted(kernel.variables)
    components = _components(kernel)
    if not kernel.ratio:
        builder.constant += kernel.start
    if len(variables) <= 2:
        over = [component.over(variables, sizes) for component in components]
        sides = [_side(side, over) for side in WHOLE[kernel.batched]]
        total = np.maximum(*sides)
        if kernel.split:
            shape = [sizes[x] if x == kernel.split.variable else 1 for x in variables]
            ways = [
                _side(coefficients, over) + constant.reshape(shape)
                for coefficients, constant in _split_sides(kernel.batched, kernel.split)
            ]
            longer = np.maximum(total, np.maximum(*ways))
            total = np.where(kernel.split.splits.reshape(shape) > 0, longer, total)
        if kernel.ratio:
            total = (total + kernel.start) * kernel.ratio.over(variables, sizes)
        builder.add(variables, total)
        return
    at = [np.array(component.at(labels)) for component in components]
    base = max(WHOLE[kernel.batched], key=lambda side: float(_side(side, at)))
    if kernel.split:
        along, coefficients, constants = _split_sums(kernel, kernel.split, labels, sizes, base)
    else:
        along = (
            min(kernel.ratio.variables) if kernel.ratio and kernel.ratio.variables else variables[0]
        )
        coefficients = np.tile(np.array(base, dtype=np.float64), (sizes[along], 1))
        constants = np.zeros(sizes[along])
    factors = np.ones(sizes[along])
    if kernel.ratio:
        factors = _ratio_along(kernel.ratio, along, sizes[along], labels, exact=exact)
        constants = constants + kernel.start
    least = float(np.min(factors))
    builder.unary[along] += constants * factors
    for component, usual, each in zip(components, base, coefficients.T, strict=True):
        if usual:
            tables = component.tables.items()
            add_to(builder, [(x, t * least) for x, t in tables] if kernel.ratio else list(tables))
        more = each * factors - usual * least
        if more.any():
            add_to(builder, list(component.scaled(along, more, labels if exact else None)))


def _ratio_along(ratio: Sum, variable: int, size: int, labels: Ints, *, exact: bool) -> Floats:
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
    kernel: KernelTables, split: Split, labels: Ints, sizes: Sequence[int], base: Coefficients
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
