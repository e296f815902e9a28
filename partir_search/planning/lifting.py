"""Lifting of a path of moves from the folded program to the unfolded one, tile by tile.

One class of the fold may be several classes of the program with further neighbours, as folded
layers differ in their readers. Propagation on the program then stops earlier than on the fold, or
arrives from another side first. Each action is compared with the fold: stray tiles become barriers,
contrary loops are fixed, and missing tiles are decided at the end. If tiles are still missing, all
tiles of the fold are decided anew, without its actions.
"""

from __future__ import annotations

import collections
import contextlib
from array import array
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from partir_search.ir.rule import NONE
from partir_search.mcts.game import Move
from partir_search.passes.fold.fold import Folded
from partir_search.planning.assignments import decisions_to
from partir_search.planning.game import PlanningGame
from partir_search.planning.unfold import FoldMembers, OwnMembers, apply_lifted
from partir_search.propagation.actions import Action, FixLoop
from partir_search.propagation.graph import Graph
from partir_search.propagation.state import State
from partir_search.simulator.arrays import Ints
from partir_search.strategies.decisions import Decision

Row = np.ndarray[tuple[int], np.dtype[np.int8]]


class Lifter:
    """Lifting from one fold to its program."""

    def __init__(self, folded: Folded, fold: Graph, graph: Graph) -> None:
        """Maps between the graph of the folded program and that of the unfolded one."""
        self.classes, self.nodes = _classes(folded, fold, graph), _nodes(folded, fold, graph)
        self.known, self.known_ops = self.classes >= 0, graph.op_nodes & (self.nodes >= 0)
        self.members, self.own = FoldMembers(folded, fold, graph), OwnMembers(graph)
        # Every class and every op with loops of its own is one of the fold.
        self.covers = bool(self.known.all()) and not bool(np.any(graph.op_nodes & ~self.known_ops))

    @contextlib.contextmanager
    def assigned(self, game: PlanningGame, path: Sequence[Move], state: State) -> Iterator[None]:
        """Gives a state the tiles and loops of a path on the fold, without actions.

        Args:
          game / path: as of `lift`.
          state: of the unfolded program; restored.
        """
        before = state.key()
        tiles, loops = game.rows_after(path)
        for rows, wanted in (
            (state.tiles, _at(tiles, self.classes)),
            (state.loops, _at(loops, self.nodes)),
        ):
            for row, values in zip(rows, wanted, strict=True):
                _row(row)[:] = values
        try:
            yield
        finally:
            state.restore(before)

    def lift(self, game: PlanningGame, path: Sequence[Move], state: State) -> list[Action]:
        """Actions on the unfolded program with the tiles and loops of a path on the fold.

        Args:
          game: a game on the folded program.
          path: moves from the game's first state.
          state: of the unfolded program after the decisions before the game; the actions are
            applied.
        """
        lifting, before = _Lifting(self, game.rows_after(path), state), state.key()
        found = [a for d in game.decisions(path) for a in lifting.actions(d)] + lifting.missing()
        after, count = state.key(), lifting.count_missing()
        if not count:
            return found
        # Loops fixed for one action may keep the tiles of a later one away.
        state.restore(before)
        alone = lifting.missing()
        if lifting.count_missing() < count:
            return alone
        state.restore(after)
        return found


class _Lifting:
    """Tiles and loops wanted of `state`.

    Attributes:
      tiles: [axes, classes] dims, NONE or REPLICATED.
      loops: [axes, nodes] factors, NONE or REPLICATED.
      known: [classes] True for classes of the fold.
      known_ops: [nodes] True for ops with loops of their own, on the fold too.
    """

    def __init__(
        self,
        lifter: Lifter,
        rows: tuple[Sequence[array[int]], Sequence[array[int]]],
        state: State,
    ) -> None:
        """Wanted tiles and loops.

        Args:
          rows: tiles of classes and loops of nodes of the fold, by axis.
          state: of the unfolded program.
        """
        self.state, self._lifter = state, lifter
        self.tiles, self.loops = _at(rows[0], lifter.classes), _at(rows[1], lifter.nodes)
        self.known, self.known_ops = lifter.known, lifter.known_ops

    def actions(self, decision: Decision) -> list[Action]:
        """Actions of a decision, applied to the state; fixed loops come first."""
        state, barriers, contrary = self.state, set[int](), set[tuple[int, int]]()
        before, (over_before, contrary_before) = state.key(), self._strays(decision.axes)
        while True:
            fixes = self._fixes(contrary)
            for each in fixes:
                each.apply(state)
            lifted = apply_lifted(decision, state, self._lifter.members, barriers)
            if lifted is None:
                state.restore(before)
                return []
            action, decided = lifted
            over, loops = self._strays(decision.axes)
            over = over.difference(over_before, barriers, decided)
            loops = loops.difference(contrary_before, contrary)
            if not (over or loops):
                return [*fixes, action]
            state.restore(before)
            barriers |= over
            contrary |= loops

    def missing(self) -> list[Action]:
        """Actions for wanted tiles and loops missing in the state, applied to the state."""
        state = self.state
        if not self.count_missing():
            return []
        decisions = decisions_to(state, _arrays(self.tiles), _arrays(self.loops))
        lifted = (apply_lifted(decision, state, self._lifter.own) for decision in decisions)
        return [each[0] for each in lifted if each]

    def count_missing(self) -> int:
        """Number of wanted tiles missing in the state, over all axes."""
        rows = zip(self.tiles, map(_row, self.state.tiles), strict=True)
        return sum(int(np.count_nonzero((wanted >= 0) & (row < 0))) for wanted, row in rows)

    def _strays(self, axes: Sequence[int]) -> tuple[set[int], set[tuple[int, int]]]:
        """Classes with unwanted tiles, and (axis, node) pairs with unwanted loops."""
        state, over, loops = self.state, set[int](), set[tuple[int, int]]()
        for axis in axes:
            tiles, factors = _row(state.tiles[axis]), _row(state.loops[axis])
            classes = self.known & (tiles >= 0) & (tiles != self.tiles[axis])
            over.update(np.flatnonzero(classes).tolist())
            ops = self.known_ops & (factors >= 0) & (factors != self.loops[axis])
            loops.update((axis, n) for n in np.flatnonzero(ops).tolist())
        return over, loops

    def _fixes(self, nodes: Iterable[tuple[int, int]]) -> list[FixLoop]:
        """Fixed loops as wanted, of (axis, node) pairs without a loop."""
        state, found = self.state, list[FixLoop]()
        graph, groups = state.graph, collections.defaultdict[tuple[int, int], list[str]](list)
        for axis, n in sorted(nodes):
            factor = max(int(self.loops[axis][n]), NONE)
            if state.may_fix_loop(n, factor, axis):
                groups[axis, factor].append(graph.module.ops[graph.nodes[n].op].results[0].name)
        for (axis, factor), (name, *also) in groups.items():
            found.append(FixLoop(name, factor, state.mesh.label((axis,)), tuple(also)))
        return found


def _classes(folded: Folded, fold: Graph, graph: Graph) -> Ints:
    """[classes] class of the fold, or NONE."""
    values = [folded.class_of[members[0]] for members in graph.members]
    return np.array([fold.class_of[v] if v >= 0 else NONE for v in values], dtype=np.int64)


def _nodes(folded: Folded, fold: Graph, graph: Graph) -> Ints:
    """[nodes] node of the fold, or NONE."""
    makers, found = fold.analysis.def_use.makers, []
    for node in graph.nodes:
        results = graph.module.ops[node.op].results
        value = folded.class_of[results[0].id] if results else NONE
        maker = makers[value] if value >= 0 else None
        found.append(NONE if maker is None else fold.node_of[maker.id])
    return np.array(found, dtype=np.int64)


def _at(rows: Sequence[array[int]], source: Ints) -> list[Row]:
    """Rows of the fold, by class or node of the program."""
    return [np.where(source >= 0, _row(row)[source], NONE).astype(np.int8) for row in rows]


def _row(row: array[int]) -> Row:
    return np.frombuffer(row, dtype=np.int8)


def _arrays(rows: Sequence[Row]) -> list[array[int]]:
    return [array("b", row.tobytes()) for row in rows]
