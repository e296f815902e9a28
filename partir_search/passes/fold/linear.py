"""A program's ops in one list: those of a large loop's body stand before the loop itself.

A step over microbatches holds all of its layers in the body of a scan. To fold these, the body is
*opened*: its ops are looked at one by one as those of the program are. Small bodies (a layer that
is scanned, or computed again) stay closed: there is little to fold in them.
"""

from __future__ import annotations

import collections
import dataclasses
from array import array
from collections.abc import Callable, Hashable, Sequence

from partir_search.ir.core import Module, Op, Region, Value

OPEN = 256  # ops in a body that is opened

Ties = Sequence[Sequence[tuple[Value, int]]]
"""Groups of (value, lead): the first dims of a value apart, they are one value in and outside of a
region op."""


@dataclasses.dataclass(frozen=True, slots=True)
class Opened:
    """A region op whose bodies are opened.

    Attributes:
      start: position of its first op in the list; the region op stands after its ops.
      regions: numbers of its regions.
      ties: of its operands, its regions' arguments and results, and its results.
    """

    start: int
    regions: tuple[int, ...]
    ties: Ties


@dataclasses.dataclass(frozen=True, slots=True)
class Linear:
    """All ops of a module, but for those in closed regions.

    Attributes:
      ops: in program order.
      region: per op, the number of its region.
      place: per op, its position there.
      regions: by number; the first one is the module's body.
      opened: by place in `ops`.
    """

    ops: list[Op]
    region: array[int]
    place: array[int]
    regions: list[Region]
    opened: dict[int, Opened]


@dataclasses.dataclass(frozen=True, slots=True)
class Places:
    """Ops of a region that are left in a quotient.

    Attributes:
      positions: per op of the quotient's region, its position in the original's.
      op_of: per op of the original's, which of the quotient's stands for it.
      opened: the same of the regions of opened ops, by their position in the original.
    """

    positions: list[int]
    op_of: array[int]
    opened: dict[int, tuple[Places, ...]]


def linearize(
    module: Module, key_of: Callable[[Op], Hashable], ties_of: Callable[[Op], Ties] | None
) -> Linear:
    """Lists the ops of a module.

    Args:
      key_of: gives equal keys to ops of equal rule: only what has no equal beside it is opened, as
        copies fold as they are.
      ties_of: ties of a region op; without, none is opened.
    """
    linear = Linear([], array("i"), array("i"), [], {})

    def add(region: Region) -> int:
        number = len(linear.regions)
        linear.regions.append(region)
        large = [op for op in region.ops if op.regions and weight(op) > OPEN] if ties_of else []
        beside = collections.Counter(map(key_of, large))
        for place, op in enumerate(region.ops):
            if ties_of and op.regions and beside.get(key_of(op)) == 1:
                start = len(linear.ops)
                inside = tuple(map(add, op.regions))
                linear.opened[len(linear.ops)] = Opened(start, inside, ties_of(op))
            linear.ops.append(op)
            linear.region.append(number)
            linear.place.append(place)
        return number

    add(module.body)
    return linear


def weight(op: Op) -> int:
    """The op and all ops inside it."""
    return 1 + sum(weight(o) for region in op.regions for o in region.ops)


def places_of(linear: Linear, chosen: Sequence[int], op_of: Sequence[int]) -> Places:
    """Ops of the module's body that are left.

    Args:
      chosen: places in the list of the ops that are left.
      op_of: per op of the list, which of the chosen stands for it.
    """
    found = [Places([], array("i", [-1]) * len(r.ops), {}) for r in linear.regions]
    rank: list[int] = []
    for at in chosen:
        positions = found[linear.region[at]].positions
        rank.append(len(positions))
        positions.append(linear.place[at])
    for at, q in enumerate(op_of):
        found[linear.region[at]].op_of[linear.place[at]] = rank[q]
    for at, opened in linear.opened.items():
        inner = tuple(found[n] for n in opened.regions)
        found[linear.region[at]].opened[linear.place[at]] = inner
    return found[0]
