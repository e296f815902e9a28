"""Trip counts of loops, as params of their ops, and loops with data-dependent counts."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from partir_search.ir.core import Module, Op, Region

ASSUMED = 100  # iterations of a data-dependent loop in XLA's auto-sharding pass


@dataclasses.dataclass(frozen=True, slots=True)
class Trips:
    """Trip count of a `while` loop or of a scan with an early exit.

    Attributes:
      count: iterations assumed by the simulator.
      most: iterations allowed by the program; None without a limit.
      said: source of `count`: "program" (exact), "user" or "assumed".
    """

    count: int
    most: int | None
    said: str


@dataclasses.dataclass(frozen=True, slots=True)
class DataLoop:
    """Loop with a data-dependent trip count.

    Attributes:
      name: name of its first result.
      source: line of the user's code, or the name stack if unknown.
      trips: its trip count.
      runs: iterations in a step of the program, outer loops included.
    """

    name: str
    source: str
    trips: Trips
    runs: int


def trips_of(op: Op) -> int:
    """Iterations of a `while` or a scan."""
    found: Trips | None = op.params.get("trips")
    return int(op.params.get("length", ASSUMED)) if found is None else found.count


def data_loops(module: Module) -> list[DataLoop]:
    """Loops of a module with data-dependent trip counts, in program order."""
    return list(_data_loops(module.body, 1))


def _data_loops(region: Region, runs: int) -> Iterator[DataLoop]:
    for op in region.ops:
        trips: Trips | None = op.params.get("trips") if op.regions else None
        inside = runs * (trips.count if trips else int(op.params.get("length", 1)))
        if trips and trips.said != "program":
            yield DataLoop(loop_name(op), op.source or op.scope, trips, inside)
        for inner in op.regions:
            yield from _data_loops(inner, inside)


def loop_name(op: Op) -> str:
    """Name of a loop's first result, or of its primitive without results."""
    return op.results[0].name if op.results else op.prim
