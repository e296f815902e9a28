"""Fixed layouts of values, and the actions for a set of them, independent of their order."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence

from partir_search.ir.mesh import MeshShape
from partir_search.ir.partition import Layout
from partir_search.propagation.actions import Action, AxisOrder, Close, Replicate, Tile


@dataclasses.dataclass(frozen=True, slots=True)
class FixedLayout:
    """Layout fixed by the user for one value; axes not mentioned are free.

    Attributes:
      value: name of the value.
      layout: [dims] axes tiling the dim, major to minor.
      replicated: axes along which the value is replicated.
      closed: (dim, axis) pairs without a tile.
    """

    value: str
    layout: Layout
    replicated: tuple[int, ...]
    closed: tuple[tuple[int, int], ...] = ()


def layout_actions(layouts: Sequence[FixedLayout], mesh: MeshShape) -> list[Action]:
    """Actions for fixed layouts.

    Values of equal tiling share an action, decided before propagation. A tile stops (`barriers`)
    at values with a different tiling on one of its axes.

    Args:
      layouts: without conflicts.
      mesh: mesh of the layouts.
    """
    replicated: dict[int, list[str]] = collections.defaultdict(list)
    tiled: dict[tuple[int, tuple[int, ...]], list[str]] = collections.defaultdict(list)
    for fixed in layouts:
        for axis in fixed.replicated:
            replicated[axis].append(fixed.value)
        for dim, axes in enumerate(fixed.layout):
            if axes:
                tiled[dim, axes].append(fixed.value)
    actions: list[Action] = []
    for axis, values in sorted(replicated.items()):
        first, *also = dict.fromkeys(values)
        actions.append(Replicate(first, mesh.names[axis], tuple(also)))
    actions += [
        Close(fixed.value, dim, mesh.names[axis]) for fixed in layouts for dim, axis in fixed.closed
    ]
    orders = dict.fromkeys(mesh.label(axes) for _, axes in tiled if len(axes) > 1)
    actions += [AxisOrder(label) for label in orders if "+" in label]
    for (dim, axes), values in tiled.items():
        others = [
            value
            for (d, along), names in tiled.items()
            if (d, along) != (dim, axes) and not set(along).isdisjoint(axes)
            for value in names
        ]
        first, *also = dict.fromkeys(values)
        barriers = tuple(v for v in dict.fromkeys(others) if v not in values)
        actions.append(Tile(first, dim, mesh.label(axes), tuple(also), barriers))
    return actions
