"""Planning without debugging ops, which must not influence the plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from partir_search.ir.core import Module, Value
from partir_search.ir.partition import Partition
from partir_search.passes.debug_ops import find_debug_ops, without_ops
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
    played, _ = planner.replay_compatible(actions)
    if not _agree(found, played):
        replicated = _undecided(planner, debugging, found)
        played, _ = planner.replay_compatible([*replicated, *actions])
    return with_search(played, found, found.reports)


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
