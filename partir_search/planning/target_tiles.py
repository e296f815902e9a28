"""Actions that reach given tiles and loops.

The actions come from a like program, in which propagation takes further ways. Each action is
compared with the tiles wanted: stray tiles become barriers, contrary loops are fixed, and missing
tiles are decided at the end. If tiles are still missing, all tiles are decided anew, without the
actions.
"""

from __future__ import annotations

import collections
from array import array
from collections.abc import Callable, Collection, Iterable, Sequence

import numpy as np

from partir_search.ir.rule import NONE
from partir_search.planning.assignments import decisions_to
from partir_search.planning.unfold import OwnMembers, apply_lifted
from partir_search.propagation.actions import Action, FixLoop
from partir_search.propagation.state import State
from partir_search.simulator.arrays import Bools, Ints

Row = np.ndarray[tuple[int], np.dtype[np.int8]]

Play = Callable[[Collection[int]], tuple[Action, Collection[int]] | None]
"""Function from further barriers, as classes, to an applied action and what the action decided.

Classes or nodes are decided. None if nothing is left to decide.
"""


class TargetTiles:
    """Tiles and loops wanted of a state.

    Attributes:
      state: of a program.
      tiles: [axes, classes] dims, NONE or REPLICATED.
      loops: [axes, nodes] factors, NONE or REPLICATED.
      known: [classes] True for classes with known tiles.
      known_ops: [nodes] True for ops with known loops of their own.
    """

    def __init__(
        self,
        state: State,
        tiles: Sequence[Row],
        loops: Sequence[Row],
        known: Bools,
        known_ops: Bools,
        own: OwnMembers,
    ) -> None:
        self.state, self.tiles, self.loops = state, tiles, loops
        self.known, self.known_ops, self._own = known, known_ops, own

    def reached(self, played: Iterable[Sequence[Action]]) -> list[Action]:
        """Actions of several plays in turn, and for the tiles missing then."""
        state, before = self.state, self.state.key()
        found = [action for actions in played for action in actions] + self._missing()
        after, count = state.key(), self._count_missing()
        if not count:
            return found
        # Loops fixed for one action may keep the tiles of a later one away.
        state.restore(before)
        alone = self._missing()
        if self._count_missing() < count:
            return alone
        state.restore(after)
        return found

    def corrected(self, play: Play, axes: Sequence[int]) -> list[Action]:
        """Actions of a play along some axes, applied to the state; fixed loops come first."""
        state, barriers, contrary = self.state, set[int](), set[tuple[int, int]]()
        before, (over_before, contrary_before) = state.key(), self._strays(axes)
        while True:
            fixes = self._fixes(contrary)
            for each in fixes:
                each.apply(state)
            played = play(barriers)
            if played is None:
                state.restore(before)
                return []
            action, decided = played
            over, loops = self._strays(axes)
            over = over.difference(over_before, barriers, decided)
            loops = loops.difference(contrary_before, contrary)
            if not (over or loops):
                return [*fixes, action]
            state.restore(before)
            barriers |= over
            contrary |= loops

    def _missing(self) -> list[Action]:
        """Actions for wanted tiles and loops missing in the state, applied to the state."""
        state = self.state
        if not self._count_missing():
            return []
        decisions = decisions_to(state, _arrays(self.tiles), _arrays(self.loops))
        lifted = (apply_lifted(decision, state, self._own) for decision in decisions)
        return [each[0] for each in lifted if each]

    def _count_missing(self) -> int:
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


def rows_at(rows: Sequence[array[int]], source: Ints) -> list[Row]:
    """Rows of a like program, by class or node of this one.

    Args:
      source: class or node of the like program, or NONE.
    """
    return [np.where(source >= 0, _row(row)[source], NONE).astype(np.int8) for row in rows]


def give_rows(state: State, tiles: Sequence[Row], loops: Sequence[Row]) -> None:
    """Gives a state tiles and loops, without actions."""
    for rows, wanted in ((state.tiles, tiles), (state.loops, loops)):
        for row, values in zip(rows, wanted, strict=True):
            _row(row)[:] = values


def _row(row: array[int]) -> Row:
    return np.frombuffer(row, dtype=np.int8)


def _arrays(rows: Sequence[Row]) -> list[array[int]]:
    return [array("b", row.tobytes()) for row in rows]
