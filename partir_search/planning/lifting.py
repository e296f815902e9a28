"""Lifting of a path of moves from the folded program to the unfolded one, tile by tile.

One class of the fold may be several classes of the program with further neighbours, as folded
layers differ in their readers. Propagation on the program then stops earlier than on the fold, or
arrives from another side first: each action is corrected by the fold's tiles (`target_tiles.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence

import numpy as np

from partir_search.ir.rule import NONE
from partir_search.mcts.game import Move
from partir_search.passes.fold.fold import Folded
from partir_search.planning.game import PlanningGame
from partir_search.planning.target_tiles import TargetTiles, give_rows, rows_at
from partir_search.planning.unfold import FoldMembers, OwnMembers, apply_lifted
from partir_search.propagation.actions import Action
from partir_search.propagation.graph import Graph
from partir_search.propagation.state import State
from partir_search.simulator.arrays import Ints
from partir_search.strategies.decisions import Decision

FEW = 1e-3  # of the ops: others leave whole costs by a fold's tiles near those after actions


class Lifter:
    """Lifting from one fold to its program."""

    def __init__(self, folded: Folded, fold: Graph, graph: Graph) -> None:
        """Maps between the graph of the folded program and that of the unfolded one."""
        self.classes, self.nodes = _classes(folded, fold, graph), _nodes(folded, fold, graph)
        self.known, self.known_ops = self.classes >= 0, graph.op_nodes & (self.nodes >= 0)
        self.members, self.own = FoldMembers(folded, fold, graph), OwnMembers(graph)
        # Every class and nearly every op with loops of its own is one of the fold.
        self._left = np.flatnonzero(graph.op_nodes & ~self.known_ops).tolist()
        few = len(self._left) <= FEW * np.count_nonzero(graph.op_nodes)
        self.covers = bool(self.known.all()) and few

    @contextlib.contextmanager
    def assigned(self, game: PlanningGame, path: Sequence[Move], state: State) -> Iterator[None]:
        """Gives a state the tiles and loops of a path on the fold, without actions.

        Ops that are none of the fold get the loops that their values' tiles ask for.

        Args:
          game / path: as of `lift`.
          state: of the unfolded program; restored.
        """
        before = state.key()
        tiles, loops = game.rows_after(path)
        give_rows(state, rows_at(tiles, self.classes), rows_at(loops, self.nodes))
        state.loop_over_tiles(self._left)
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
        tiles, loops = game.rows_after(path)
        rows = rows_at(tiles, self.classes), rows_at(loops, self.nodes)
        target = TargetTiles(state, *rows, self.known, self.known_ops, self.own)

        def played(decision: Decision) -> list[Action]:
            def play(barriers: Collection[int]) -> tuple[Action, Collection[int]] | None:
                return apply_lifted(decision, state, self.members, barriers)

            return target.corrected(play, decision.axes)

        return target.reached(played(decision) for decision in game.decisions(path))


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
