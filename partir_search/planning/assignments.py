"""Assignments of tilings and loops as moves: decisions from the game's first state.

Decisions propagate: a few reach most classes. Loops contrary to propagation are fixed first;
classes tiled wrongly by the propagation of a decision become barriers of the decision.
"""

from __future__ import annotations

import dataclasses
from array import array
from collections.abc import Callable, Sequence

import numpy as np

from partir_search.ir.rule import NONE
from partir_search.propagation.graph import Graph
from partir_search.propagation.reach import reached_barriers
from partir_search.propagation.state import State
from partir_search.strategies.decisions import Axes, Decision, FixLoops, TileClass

Rows = Sequence["array[int]"]


@dataclasses.dataclass(frozen=True, slots=True)
class Assign:
    """Move to an assignment, from the first state of a game only.

    Attributes:
      source: text for the origin of the assignment.
      decisions: decisions from the first state to the assignment.
    """

    source: str
    decisions: tuple[Decision, ...]

    def apply(self, targets: object, state: State) -> Sequence[Decision]:
        """Applies the decisions; none at all if one is illegal."""
        before = state.key()
        if all(decision.decide(state) for decision in self.decisions):
            return self.decisions
        state.restore(before)
        return ()

    def describe(self, name_of: Callable[[int], str], label: Callable[[Axes], str]) -> str:
        """Text of the move."""
        return f"exact steps from {self.source}: {len(self.decisions)} decisions"


def decisions_to(state: State, tiles: Rows, loops: Rows) -> list[Decision]:
    """Decisions from a state to an assignment; the state is restored.

    Args:
      state: a state whose decided tiles and loops agree with the assignment.
      tiles: [axes] dim of each class, or NONE.
      loops: [axes] factor of each node of an op, or NONE.
    """
    start = state.key()
    found: list[Decision] = []
    for axis in range(len(tiles)):
        before = state.key()
        played, fixed = _play(state, axis, tiles[axis], loops[axis])
        if fixed:  # first: no tile has passed these nodes
            state.restore(before)
        decisions = _fix(state, axis, fixed)
        if fixed:
            played = [decision for decision in played if decision.decide(state)]
        now = _row(state.loops[axis])
        missing = np.flatnonzero(state.graph.op_nodes & (_row(loops[axis]) >= 0) & (now < 0))
        late = _fix(state, axis, {int(n): loops[axis][n] for n in missing})
        found += [*decisions, *played, *late]
    state.restore(start)
    return found


def _play(
    state: State, axis: int, tiles: array[int], loops: array[int]
) -> tuple[list[Decision], dict[int, int]]:
    """Plays tilings of an axis.

    Returns:
      The decisions, and factors by node where propagation gives a loop unlike `loops`.
    """
    wanted, looped, now = _row(tiles), _row(loops), _row(state.tiles[axis])
    played: list[Decision] = []
    barriers: set[int] = set()
    fixed: dict[int, int] = {}
    for c in _by_size(state.graph, wanted):
        while now[c] != wanted[c]:
            move = TileClass(c, int(wanted[c]), (axis,), tuple(sorted(barriers)))
            before, start = state.key(), state.tiles[axis][:]
            if not move.decide(state):
                break
            loop = _row(state.loops[axis])
            wrong = np.flatnonzero(state.graph.op_nodes & (loop >= 0) & (loop != looped)).tolist()
            over = np.flatnonzero((now >= 0) & (now != wanted)).tolist()
            over = [other for other in over if other not in barriers]  # also decided before
            if not (wrong or over):
                reached = reached_barriers(state, (axis,), [start], barriers) if barriers else ()
                played.append(dataclasses.replace(move, barriers=tuple(sorted(reached))))
                break
            # Where propagation leaves the assignment: the rest follows from there.
            nodes, touching = state.graph.nodes, state.graph.touching
            first = [n for n in wrong if any(now[k] == wanted[k] >= 0 for k in nodes[n].classes)]
            ends = [k for k in over if any(0 <= loop[n] == looped[n] for n in touching[k])]
            state.restore(before)
            if not first and (ends or over):
                barriers.update(ends or over)
                continue
            unlike = {n: loops[n] for n in first or wrong if n not in fixed}
            if not unlike:  # a loop that cannot be fixed
                break
            _fix(state, axis, unlike)
            fixed |= unlike
    return played, fixed


def _by_size(graph: Graph, wanted: np.ndarray) -> list[int]:
    """Classes to tile: classes with arguments first, then the largest."""
    arguments = {graph.class_of[v.id] for v in graph.module.body.args}
    values, members = graph.module.values, graph.members
    size = {int(c): values[members[int(c)][0]].type.nbytes for c in np.flatnonzero(wanted >= 0)}
    return sorted(size, key=lambda c: (c not in arguments, -size[c], c))


def _fix(state: State, axis: int, fixed: dict[int, int]) -> list[Decision]:
    """Fixes loops of nodes, one decision per factor; returns the decisions."""
    graph, by_factor = state.graph, dict[int, list[int]]()
    for n, factor in fixed.items():
        result = graph.module.ops[graph.nodes[n].op].results[0]
        by_factor.setdefault(max(factor, NONE), []).append(result.id)
    decisions = [FixLoops(tuple(sorted(v)), f, (axis,)) for f, v in sorted(by_factor.items())]
    return [decision for decision in decisions if decision.decide(state)]


def _row(row: array[int]) -> np.ndarray:
    return np.frombuffer(row, dtype=np.int8)
