"""Data-flow edges of ops with regions: which values outside and inside of a region are one.

A region op has no factors of its own. Each edge ties a value outside to one inside. In propagation
an edge acts like an identity op; in lowering the outer value is resharded to the inner one's
layout. Stacked leading dims of scanned inputs and outputs are never tiled. The term is Shardy's
(`data_flow_edge`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from partir_search.ir.core import Op, Value

Block = Callable[..., Sequence[Any]]
"""Emitter of a region: arguments to results."""

Emit = Callable[[Op, Sequence[Block], Sequence[Any]], Sequence[Any]]
"""Emitter of a region op, given emitters of its (local) regions and its operands."""


class InputEdge(NamedTuple):
    """An operand that is an argument of a region, without `stacked_dims` leading dims."""

    operand: int
    region: int
    argument: int
    stacked_dims: int = 0


class OutputEdge(NamedTuple):
    """A region's result that is a result of the op, which has `stacked_dims` more leading dims."""

    region: int
    region_result: int
    op_result: int
    stacked_dims: int = 0


class CarryEdge(NamedTuple):
    """A region's result that is an argument of the next iteration."""

    region: int
    region_result: int
    next_region: int
    argument: int


class FinalEdge(NamedTuple):
    """A carry's argument whose value after the last iteration is a result of the op."""

    region: int
    argument: int
    op_result: int


class SharedEdge(NamedTuple):
    """Arguments of two regions that are one value."""

    region: int
    argument: int
    other_region: int
    other_argument: int


@dataclasses.dataclass(frozen=True, slots=True)
class ExampleLoop:
    """A loop over a batch of examples that keep their values once they have finished.

    Attributes:
      decides: region of the predicate, true while any example goes on.
      body: region of an iteration.
      first: its first argument that is a carry; the last one says which examples go on.
    """

    decides: int
    body: int
    first: int


@dataclasses.dataclass(frozen=True, slots=True)
class DataFlowEdges:
    """Data flow in and out of an op's regions; empty for an op without regions.

    Attributes:
      trip_counts: runs of each region per run of the op (an estimate where data decide).
      examples: of a loop whose examples stop each by itself; else None.
    """

    inputs: tuple[InputEdge, ...] = ()
    outputs: tuple[OutputEdge, ...] = ()
    carries: tuple[CarryEdge, ...] = ()
    finals: tuple[FinalEdge, ...] = ()
    shared: tuple[SharedEdge, ...] = ()
    trip_counts: tuple[int, ...] = ()
    examples: ExampleLoop | None = None


NO_EDGES = DataFlowEdges()

Tied = tuple[tuple[Value, int], ...]
"""Values, each with its number of stacked dims: tiled alike, dim by dim after these."""


def tied_values(op: Op, edges: DataFlowEdges) -> list[Tied]:
    """Groups of values in and around a region op that share their tiling."""
    groups: list[list[tuple[Any, int]]] = []
    place: dict[tuple[int, int], int] = {}
    for operand, region, arg, stacked in edges.inputs:
        place[region, arg] = len(groups)
        groups.append([(op.operands[operand], stacked), (op.regions[region].args[arg], 0)])
    for region, result, to, arg in edges.carries:
        groups[place[to, arg]].append((op.regions[region].results[result], 0))
    for region, arg, result in edges.finals:
        groups[place[region, arg]].append((op.results[result], 0))
    outputs: dict[int, list[tuple[Any, int]]] = {}
    for region, result, out, stacked in edges.outputs:
        group = outputs.setdefault(out, [(op.results[out], stacked)])
        group.append((op.regions[region].results[result], 0))
    groups.extend(outputs.values())
    return [tuple((v, n) for v, n in group if isinstance(v, Value)) for group in groups]
