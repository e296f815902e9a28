"""Limits on the propagation of fixed shardings into arguments decided by manual tactics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from partir_search.ir.argument_paths import named
from partir_search.ir.mesh import MeshShape
from partir_search.ir.rule import NONE, REPLICATED
from partir_search.planning.tactics import ManualPartition, Special, Tactic
from partir_search.propagation.actions import Action, tilings
from partir_search.propagation.apply import apply_fixed
from partir_search.propagation.graph import Graph
from partir_search.propagation.memo import PropagationMemo
from partir_search.propagation.state import State


def begin(
    graph: Graph,
    mesh: MeshShape,
    memo: PropagationMemo,
    fixed: Sequence[Action],
    schedule: Sequence[Tactic],
) -> tuple[State, list[Action]]:
    """Applies the fixed shardings to a new state.

    The schedule is applied later, but a tactic on an argument takes precedence over a tiling
    propagated from a constraint. Propagation from `fixed` therefore stops at arguments tiled
    differently by a manual tactic.

    Returns:
      The state, and the effective actions.
    """
    state = State(graph, mesh, memo=memo)
    actions = apply_fixed(state, fixed)
    overridden = tuple(dict.fromkeys(_overrun(schedule, state, actions)))
    if not overridden:
        return state, actions
    limited = [action.with_barriers(overridden) for action in fixed]
    state = State(graph, mesh, memo=memo)
    return state, apply_fixed(state, limited)


def _overrun(schedule: Sequence[Tactic], state: State, fixed: Sequence[Action]) -> Iterator[str]:
    """Arguments not in `fixed` with a propagated tiling in conflict with a manual tactic."""
    fixed_names = {name for action in tilings(fixed) for name in action.values}
    for tactic in schedule if fixed_names else ():
        if not isinstance(tactic, ManualPartition):
            continue
        for glob, spec in tactic.dims.items():
            for path, value in named(state.graph.module, glob):
                shape = value.type.shape
                dim = spec(path, shape) if callable(spec) else spec
                if not shape or value.name in fixed_names:
                    continue
                wanted = dim % len(shape) if isinstance(dim, int) else REPLICATED
                cls = state.graph.class_of[value.id]
                now = {state.tiles[a][cls] for a in state.mesh.axes(tactic.axis)}
                decides = isinstance(dim, int) or dim is Special.REPLICATED
                if decides and not now <= {NONE, wanted}:
                    yield value.name
