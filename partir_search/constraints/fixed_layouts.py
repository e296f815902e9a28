"""Layouts of single values that the user wants, as actions that depend on no order."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence

from partir_search.ir.mesh import MeshShape
from partir_search.ir.partition import Layout
from partir_search.propagation.actions import Action, AxisOrder, Close, Replicate, Tile


@dataclasses.dataclass(frozen=True, slots=True)
class Wish:
    """Layout that one value is to have.

    Attributes:
      value: its name.
      layout: axes per dim, major to minor.
      whole: axes on which it is to be whole.
      bars: (dim, axis) that are not to be; what is neither tiled, whole nor barred is free.
    """

    value: str
    layout: Layout
    whole: tuple[int, ...]
    bars: tuple[tuple[int, int], ...] = ()


def together(wishes: Sequence[Wish], mesh: MeshShape) -> list[Action]:
    """Actions that decide values before anything propagates from one to another.

    Args:
      mesh: whose axes the wishes mean.
    """
    whole: dict[int, list[str]] = collections.defaultdict(list)
    tiled: dict[tuple[int, tuple[int, ...]], list[str]] = collections.defaultdict(list)
    for wish in wishes:
        for axis in wish.whole:
            whole[axis].append(wish.value)
        for dim, axes in enumerate(wish.layout):
            if axes:
                tiled[dim, axes].append(wish.value)
    actions: list[Action] = []
    for axis, values in sorted(whole.items()):
        first, *also = dict.fromkeys(values)
        actions.append(Replicate(first, mesh.names[axis], tuple(also)))
    actions += [
        Close(wish.value, dim, mesh.names[axis]) for wish in wishes for dim, axis in wish.bars
    ]
    orders = dict.fromkeys(mesh.label(axes) for _, axes in tiled if len(axes) > 1)
    actions += [AxisOrder(label) for label in orders if "+" in label]
    for (dim, axes), values in tiled.items():
        others = [
            value
            for (d, along), those in tiled.items()
            if (d, along) != (dim, axes) and not set(along).isdisjoint(axes)
            for value in those
        ]
        first, *also = dict.fromkeys(values)
        barriers = tuple(v for v in dict.fromkeys(others) if v not in values)
        actions.append(Tile(first, dim, mesh.label(axes), tuple(also), barriers))
    return actions
