"""Planners of the forms of a program, kept for the figures beside a plan."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from partir_search.ir.core import Module
from partir_search.passes.remat import Range, find_segments, rematerialize
from partir_search.planning.planner import Planner


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class AllRecomputed:
    """A program with all segments of the forward pass computed again.

    Attributes:
      segments: all segments, in program order.
      module: the rewritten program; the program itself without segments.
    """

    segments: tuple[Range, ...]
    module: Module


class PlannerCache:
    """Planners of the forms of a program, each made once; holds no arrays of a call.

    Modules are known by `id`: planners keep their modules alive.
    """

    def __init__(self, planner_of: Callable[[Module], Planner]) -> None:
        self._planner_of = planner_of
        self._made: dict[int, Planner] = {}
        self._recomputed: dict[int, tuple[Module, AllRecomputed]] = {}

    def __call__(self, module: Module) -> Planner:
        """Planner of a form."""
        if id(module) not in self._made:
            self._made[id(module)] = self._planner_of(module)
        return self._made[id(module)]

    def recomputed(self, module: Module) -> AllRecomputed:
        """A form with all of its segments computed again, rewritten once."""
        if id(module) not in self._recomputed:
            segments = tuple(find_segments(module))
            form = AllRecomputed(segments, rematerialize(module, segments) if segments else module)
            self._recomputed[id(module)] = module, form
        return self._recomputed[id(module)][1]
