"""Data-flow edges of ops with regions: pairs of one value outside and one inside of a region.

A region op has no factors of its own. In propagation an edge acts as an identity op; in lowering
the outer value is resharded to the layout of the inner one. Stacked leading dims of scanned inputs
and outputs are never tiled. The term is Shardy's (`data_flow_edge`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from partir_search.ir.core import Op, Value

RegionFunction = Callable[..., Sequence[Any]]
"""Function that runs a region: from arguments to results."""

Emit = Callable[[Op, Sequence[RegionFunction], Sequence[Any]], Sequence[Any]]
"""Emitter of a region op, given functions that run its (local) regions and its operands."""


class InputEdge(NamedTuple):
    """Operand passed as an argument of a region, less `stacked_dims` leading dims."""

    operand: int
    region: int
    argument: int
    stacked_dims: int = 0


class OutputEdge(NamedTuple):
    """Result of a region returned as a result of the op with `stacked_dims` more leading dims."""

    region: int
    region_result: int
    op_result: int
    stacked_dims: int = 0


class CarryEdge(NamedTuple):
    """Result of a region passed as an argument of the next iteration."""

    region: int
    region_result: int
    next_region: int
    argument: int


class FinalEdge(NamedTuple):
    """Carry returned as a result of the op after the last iteration."""

    region: int
    argument: int
    op_result: int


class SharedEdge(NamedTuple):
    """Two arguments, of two regions, with one value."""

    region: int
    argument: int
    other_region: int
    other_argument: int


@dataclasses.dataclass(frozen=True, slots=True)
class ExampleLoop:
    """Loop over a batch of examples, each of which keeps its values after its last iteration.

    Attributes:
      decides: region of the predicate, true while any example is unfinished.
      body: region of an iteration.
      first: index of the body's first carry among its arguments; the last carry is the mask of
        unfinished examples.
    """

    decides: int
    body: int
    first: int


@dataclasses.dataclass(frozen=True, slots=True)
class DataFlowEdges:
    """Data flow in and out of an op's regions; empty for an op without regions.

    Attributes:
      trip_counts: runs of each region per run of the op; an estimate if the count depends on data.
      examples: set for a loop over examples with trip counts of their own.
      accumulates: True for a loop over microbatches: partial sums may stay unfinished in carries.
    """

    inputs: tuple[InputEdge, ...] = ()
    outputs: tuple[OutputEdge, ...] = ()
    carries: tuple[CarryEdge, ...] = ()
    finals: tuple[FinalEdge, ...] = ()
    shared: tuple[SharedEdge, ...] = ()
    trip_counts: tuple[int, ...] = ()
    examples: ExampleLoop | None = None
    accumulates: bool = False


NO_EDGES = DataFlowEdges()

Tied = tuple[tuple[Value, int], ...]
"""(value, number of stacked dims) pairs, tiled alike dim by dim after the stacked dims."""


def tied_values(op: Op, edges: DataFlowEdges) -> list[Tied]:
    """Groups of values in and around a region op with one tiling."""
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
