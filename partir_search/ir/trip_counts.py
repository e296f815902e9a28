"""Trip counts of loops, as params of their ops, and the loops whose count depends on data."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from partir_search.ir.core import Module, Op, Region

ASSUMED = 100  # as XLA's auto-sharding pass assumes when the count depends on data


@dataclasses.dataclass(frozen=True, slots=True)
class Trips:
    """The trip count of a `while` loop, or of a scan that is left early.

    Attributes:
      count: iterations that the simulator counts.
      most: iterations that the program allows; None if it sets no limit.
      said: by whom: "program" (exact), "user" or "assumed".
    """

    count: int
    most: int | None
    said: str


@dataclasses.dataclass(frozen=True, slots=True)
class DataLoop:
    """A loop whose trip count depends on data.

    Attributes:
      name: of its first result.
      source: line of the user's code, or the name stack where none is known.
      runs: iterations in a step of the program, with those of the loops around it.
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
    """The loops of a module whose trip count depends on data, in program order."""
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
    """Name of a loop's first result, or of its primitive."""
    return op.results[0].name if op.results else op.prim
