"""Planning without debugging ops, which must not influence the plan."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from partir_search.ir.core import Module, Region, Value
from partir_search.ir.partition import Partition
from partir_search.passes.debug_ops import find_debug_ops, without_ops
from partir_search.passes.remat import Range
from partir_search.plan.planned import Planned, with_search
from partir_search.planning.planner import Planner
from partir_search.propagation.actions import Action, Replicate

Run = Callable[[Planner, Sequence[Action]], Planned]


def plan_unwatched(
    planner: Planner, fixed: Sequence[Action], run: Run, make: Callable[[Module], Planner]
) -> Planned:
    """Plans the program without debugging ops, then applies the plan to the full program.

    Args:
      planner: planner of the full program.
      fixed: actions applied first.
      run: function (planner, fixed actions) that plans a program.
      make: function from a module to its planner.
    """
    module = planner.module
    debugging = find_debug_ops(module, planner.graph.rules)
    if not debugging:
        return run(planner, fixed)
    stripped = make(without_ops(module, debugging))
    if stripped.mesh != planner.mesh:
        return run(planner, fixed)
    stripped.goals = planner.goals
    names = stripped.module.value_names()
    applicable = [a for a in fixed if names.keys() >= set(a.values)]
    try:
        found = run(stripped, applicable)
    except ValueError:  # a tactic names a value read by debugging ops only
        return run(planner, fixed)
    actions = [*found.actions, *(a for a in fixed if a not in applicable)]
    return with_search(_played(planner, debugging, found, actions), found, found.reports)


def watch(planner: Planner, found: Planned) -> Planned:
    """Plan of a program with debugging ops, by the actions of a plan of the program without.

    Args:
      planner: of the program with debugging ops.
      found: the plan.
    """
    debugging = find_debug_ops(planner.module, planner.graph.rules)
    return _played(planner, debugging, found, found.actions)


def _played(
    planner: Planner, debugging: frozenset[int], found: Planned, actions: Sequence[Action]
) -> Planned:
    """Plan of a program by the actions of a plan of the program without debugging ops."""
    played, _ = planner.replay_compatible(actions)
    if not _agree(found, played):
        replicated = _undecided(planner, debugging, found)
        played, _ = planner.replay_compatible([*replicated, *actions])
    return played


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Unwatched:
    """A program without debugging ops.

    Attributes:
      module: the program.
      original: the program with debugging ops.
      debugging: ids of the debugging ops.
    """

    module: Module
    original: Module
    debugging: frozenset[int]

    @classmethod
    def of(cls, planner: Planner) -> Unwatched:
        """The program of a planner without debugging ops."""
        found = find_debug_ops(planner.module, planner.graph.rules)
        module = without_ops(planner.module, found) if found else planner.module
        return cls(module, planner.module, found)

    def watched(self, segments: Sequence[Range]) -> tuple[Range, ...]:
        """Positions in the original program of scans as segments of the program."""
        body = self._kept(self.original.body)
        found: list[Range] = []
        for begin, _, *stored in segments:
            inner = self._kept(self.original.body.ops[body[begin]].regions[0])
            found.append((body[begin], body[begin] + 1, *(inner[at] for at in stored)))
        return tuple(found)

    def _kept(self, region: Region) -> list[int]:
        return [at for at, op in enumerate(region.ops) if op.id not in self.debugging]


def _agree(found: Planned, played: Planned) -> bool:
    """True if both plans tile all common values alike."""
    full, stripped = found.sketch.partition, played.sketch.partition
    by_name = stripped.module.value_names()
    return all(full.layout(v) == stripped.layout(by_name[v.name]) for v in full.module.values)


def _undecided(planner: Planner, debugging: frozenset[int], found: Planned) -> list[Action]:
    """Replicate actions for values read by debugging ops and not tiled by the plan.

    They prevent propagation of a tiling from a debugging op back into the program.
    """
    partition: Partition = found.sketch.partition
    known = found.graph.module.value_names()
    read: dict[str, Value] = {}
    for op in planner.module.ops:
        if op.id in debugging:
            read.update((v.name, known[v.name]) for _, v in op.inputs() if v.name in known)
    mesh = partition.mesh
    return [
        Replicate(name, mesh.names[axis])
        for name, value in read.items()
        for axis in range(len(mesh.names))
        if value.type.shape and partition.tiles[axis][value.id] < 0
    ]
