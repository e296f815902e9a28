"""Planning without debugging ops, which must not influence the plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from partir_search.ir.core import Module, Value
from partir_search.ir.partition import Partition
from partir_search.passes.debug_ops import unwatched, watching
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
    aside = watching(module, planner.graph.rules)
    if not aside:
        return run(planner, fixed)
    bare = make(unwatched(module, aside))
    if bare.mesh != planner.mesh:
        return run(planner, fixed)
    bare.goals = planner.goals
    names = bare.module.value_names()
    kept = [a for a in fixed if names.keys() >= set(a.values)]
    try:
        found = run(bare, kept)
    except ValueError:  # a tactic may name what only debugging ops read
        return run(planner, fixed)
    actions = [*found.actions, *(a for a in fixed if a not in kept)]
    played, _ = planner.replay_compatible(actions)
    if not _agree(found, played):
        keep = _undecided(planner, aside, found)
        played, _ = planner.replay_compatible([*keep, *actions])
    return with_search(played, found, found.reports)


def _agree(found: Planned, played: Planned) -> bool:
    """True if both plans tile all common values alike."""
    here, there = found.sketch.partition, played.sketch.partition
    others = there.module.value_names()
    return all(here.layout(v) == there.layout(others[v.name]) for v in here.module.values)


def _undecided(planner: Planner, aside: frozenset[int], found: Planned) -> list[Action]:
    """Replicate actions for values read by debugging ops and not tiled by the plan.

    They prevent propagation of a tiling from a debugging op back into the program.
    """
    partition: Partition = found.sketch.partition
    known = found.graph.module.value_names()
    read: dict[str, Value] = {}
    for op in planner.module.ops:
        if op.id in aside:
            read.update((v.name, known[v.name]) for _, v in op.inputs() if v.name in known)
    mesh = partition.mesh
    return [
        Replicate(name, mesh.names[axis])
        for name, value in read.items()
        for axis in range(len(mesh.names))
        if value.type.shape and partition.tiles[axis][value.id] < 0
    ]
