"""Plans of further forms of a program, with the tiles and loops of a plan.

Forms differ in the segments of the forward pass computed again, and values have equal names up to
suffixes (`passes/remat.py`). With fewer values computed again propagation takes further ways: the
plan's actions may lose tiles, or reach more.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence

import numpy as np

from partir_search.ir.axis_options import NO_MODES
from partir_search.ir.rule import NONE
from partir_search.passes.remat import namesake
from partir_search.plan.planned import Planned
from partir_search.planning.grouped_actions import grouped
from partir_search.planning.planner import Planner
from partir_search.planning.target_tiles import Row, TargetTiles, give_rows, rows_at
from partir_search.planning.unfold import OwnMembers
from partir_search.propagation.actions import Action
from partir_search.propagation.actions.tilings import classes_of
from partir_search.propagation.apply import apply_compatible
from partir_search.propagation.graph import Graph
from partir_search.propagation.reach import reached_barriers
from partir_search.propagation.state import State
from partir_search.simulator.cost import Cost

LEAST_GAIN = 1e-3  # of the objective, for actions corrected by tiles


def with_tiles_of(
    planner: Planner,
    planned: Planned,
    played: Planned,
    actions: Sequence[Action],
    fixed: Sequence[Action],
    objective: Callable[[Cost], float],
) -> Planned | None:
    """Plan of a form with the tiles of another form's plan, by corrected actions.

    Args:
      planner: of the form.
      planned: plan of the known form.
      played: the actions' plan of the form.
      actions: of the known form's plan, with the names of this one.
      fixed: actions of the user's shardings, kept in any case.
      objective: the quantity to minimise.

    Returns:
      None if the corrected actions gain less than `LEAST_GAIN` on `played`, if the form has further
      values, and for axes with modes or diagonals.
    """
    graph, mesh = planner.graph, planner.mesh
    if planned.mesh != mesh or mesh.triples or planned.state.modes != NO_MODES:
        return None
    rows = _rows(planned, graph)
    if rows is None:
        return None
    state, most = State(graph, mesh), (1.0 - LEAST_GAIN) * objective(played.cost)
    give_rows(state, *rows)
    if objective(planner.costed(state)[1]) > most:
        return None
    state = State(graph, mesh)
    first, _ = apply_compatible(state, fixed)
    known = np.ones(len(graph.members), dtype=np.bool_)
    target = TargetTiles(state, *rows, known, graph.op_nodes, OwnMembers(graph))
    corrected = target.reached(_corrected(target, each) for each in actions)
    found = planner.finish(state, grouped([*first, *corrected], state))
    return found if objective(found.cost) <= most else None


def _corrected(target: TargetTiles, action: Action) -> list[Action]:
    """An action on the program's own values, corrected; nothing for an illegal one."""
    state, module = target.state, target.state.graph.module
    some = action.within(module) or action
    try:
        if some.is_applied(state):
            return []
        axes = state.mesh.axes(some.axis)
        decided = classes_of(state, some.values)
    except ValueError:
        return []

    def play(further: Collection[int]) -> tuple[Action, Collection[int]] | None:
        members = state.graph.members
        name_of = {c: module.values[members[c][0]].name for c in further}
        before = [state.tiles[a][:] for a in axes]
        try:
            some.with_barriers([*name_of.values()]).apply(state)
        except ValueError:
            return None
        reached = reached_barriers(state, axes, before, name_of)
        return some.with_barriers([name_of[c] for c in reached]), decided

    return target.corrected(play, axes)


def _rows(planned: Planned, graph: Graph) -> tuple[list[Row], list[Row]] | None:
    """Tiles of the classes and loops of the nodes of a graph, as in a plan of the known form.

    Returns:
      None if the plan's program lacks a value.
    """
    other, state = planned.graph, planned.state
    known = other.module.value_names()
    name_of = functools.cache(lambda name: namesake(name, known))
    values, makers = graph.module.values, other.analysis.def_use.makers

    def class_of(members: Sequence[int]) -> int:
        names = (name_of(values[v].name) for v in members)
        found = (other.class_of[known[name].id] for name in names if name in known)
        return next((c for c in found if c >= 0), NONE)

    def node_of(op_id: int) -> int:
        results = graph.module.ops[op_id].results
        value = known.get(name_of(results[0].name)) if results else None
        maker = makers[value.id] if value else None
        return NONE if maker is None else other.node_of[maker.id]

    classes = np.array([class_of(members) for members in graph.members], dtype=np.int64)
    if (classes < 0).any():
        return None
    nodes = np.array([node_of(node.op) for node in graph.nodes], dtype=np.int64)
    tiles, loops = rows_at(state.tiles, classes), rows_at(state.loops, nodes)
    for n in np.flatnonzero(graph.op_nodes & (nodes < 0)).tolist():
        _follow_result(graph, n, tiles, loops, state.mesh.sizes)
    return tiles, loops


def _follow_result(
    graph: Graph, n: int, tiles: Sequence[Row], loops: Sequence[Row], sizes: Sequence[int]
) -> None:
    """Gives a node loops over the tiled dims of the first result.

    In the known form the op has no loops of its own, as operands and result are of one class.
    """
    op = graph.module.ops[graph.nodes[n].op]
    rule, cls = graph.rules[op.id], graph.class_of[op.results[0].id]
    for axis, size in enumerate(sizes):
        dim = int(tiles[axis][cls])
        factors = rule.factors_on(rule.results[0], dim) if dim >= 0 else ()
        loops[axis][n] = next((f for f in factors if rule.sizes[f] % size == 0), NONE)
