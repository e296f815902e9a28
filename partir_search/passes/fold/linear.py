"""Linear list of a program's ops: the ops of a large loop body precede the loop's op.

A step over microbatches holds all layers in the body of a scan. To fold the layers, the body is
*opened*: its ops join the list. Small bodies (a scanned layer, a rematerialized segment) hold few
repeats and stay closed.
"""

from __future__ import annotations

import collections
import dataclasses
from array import array
from collections.abc import Callable, Hashable, Sequence

from partir_search.ir.core import Module, Op, Region, Value

MIN_OPENED = 256  # bodies with more ops, at every depth, are opened

Ties = Sequence[Sequence[tuple[Value, int]]]
"""Groups of (value, lead): without its first `lead` dims, each is one value, inside and outside of
a region op."""


@dataclasses.dataclass(frozen=True, slots=True)
class Opened:
    """A region op with opened bodies.

    Attributes:
      start: position in the list of the first op of the bodies; the region op follows the last.
      regions: numbers of the op's regions.
      ties: of operands and results of the op, and arguments and results of its regions.
    """

    start: int
    regions: tuple[int, ...]
    ties: Ties


@dataclasses.dataclass(frozen=True, slots=True)
class LinearOps:
    """All ops of a module outside of closed regions.

    Attributes:
      ops: in program order.
      region: by op, the number of its region.
      position: by op, its position in the region.
      regions: by number; number 0 is the module's body.
      opened: by position in `ops`, the opened region ops.
    """

    ops: list[Op]
    region: array[int]
    position: array[int]
    regions: list[Region]
    opened: dict[int, Opened]


@dataclasses.dataclass(frozen=True, slots=True)
class KeptOps:
    """Ops of a region kept in a quotient.

    Attributes:
      positions: by op of the quotient's region, its position in the original region.
      op_of: by op of the original region, the position of its representative in the quotient's.
      opened: by position of an opened op in the original region, the same for each of its regions.
    """

    positions: list[int]
    op_of: array[int]
    opened: dict[int, tuple[KeptOps, ...]]


def linearize(
    module: Module, key_of: Callable[[Op], Hashable], ties_of: Callable[[Op], Ties] | None
) -> LinearOps:
    """Lists the ops of a module.

    Args:
      key_of: function from an op to its key; ops of equal rule have equal keys. Only a region op
        without an equal in its region is opened: equal ones fold closed.
      ties_of: function from a region op to its ties; if None, no region is opened.
    """
    linear = LinearOps([], array("i"), array("i"), [], {})

    def add(region: Region) -> int:
        number = len(linear.regions)
        linear.regions.append(region)
        large = (
            [op for op in region.ops if op.regions and weight(op) > MIN_OPENED] if ties_of else []
        )
        beside = collections.Counter(map(key_of, large))
        for position, op in enumerate(region.ops):
            if ties_of and op.regions and beside.get(key_of(op)) == 1:
                start = len(linear.ops)
                inside = tuple(map(add, op.regions))
                linear.opened[len(linear.ops)] = Opened(start, inside, ties_of(op))
            linear.ops.append(op)
            linear.region.append(number)
            linear.position.append(position)
        return number

    add(module.body)
    return linear


def weight(op: Op) -> int:
    """Returns the number of ops in an op at every depth, itself included."""
    return 1 + sum(weight(o) for region in op.regions for o in region.ops)


def kept_ops(linear: LinearOps, chosen: Sequence[int], op_of: Sequence[int]) -> KeptOps:
    """Returns the ops kept of the module's body.

    Args:
      chosen: positions in the list of the ops kept.
      op_of: by op of the list, the index in `chosen` of its representative.
    """
    found = [KeptOps([], array("i", [-1]) * len(r.ops), {}) for r in linear.regions]
    rank: list[int] = []
    for at in chosen:
        positions = found[linear.region[at]].positions
        rank.append(len(positions))
        positions.append(linear.position[at])
    for at, q in enumerate(op_of):
        found[linear.region[at]].op_of[linear.position[at]] = rank[q]
    for at, opened in linear.opened.items():
        inner = tuple(found[n] for n in opened.regions)
        found[linear.region[at]].opened[linear.position[at]] = inner
    return found[0]
