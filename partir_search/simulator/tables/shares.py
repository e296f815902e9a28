"""Shares of values and ops that one device has, as tables over labels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from partir_search.ir.rule import NONE
from partir_search.simulator.arrays import Bools, Floats, Ints
from partir_search.simulator.memory.tile_padding import TilePadding
from partir_search.simulator.tables.label_sets import LabelSet
from partir_search.simulator.tables.sums import Scope
from partir_search.simulator.tables.variables import Variables
from partir_search.simulator.time.layout_copies import LayoutCopies


def effective_tiles(tiles: Ints, deferred: Bools) -> Ints:
    """[..., axes] tiles of a value; NONE along axes on which the value is partial at rest."""
    found: Ints = np.where(deferred, NONE, tiles)
    return found


def loops_of(tiles: LabelSet, passes: LabelSet) -> Ints:
    """[tilings, labels of the op, axes] loops of an op whose loops are the tiling of its result's
    class, except where partial results pass.
    """
    passing = passes.codes[None, :, :] < NONE
    found: Ints = np.where(passing, NONE, tiles.codes[:, None, :])
    return found


class Shares:
    """Shares of values and ops, cached by label sets."""

    def __init__(self, variables: Variables, padding: TilePadding) -> None:
        self.variables, self._padding = variables, padding
        self._sizes = np.array(variables.mesh.sizes, dtype=np.float64)
        self._known: dict[tuple[int, ...], Floats] = {}

    def of_codes(self, codes: Ints) -> Floats:
        """[...] share of labels given as [..., axes] codes."""
        found: Floats = np.prod(np.where(codes >= 0, 1.0 / self._sizes, 1.0), axis=-1)
        return found

    def value(self, v: int) -> tuple[Scope, Floats]:
        """Fraction of a value's elements on one device in its home layout, and the variables.

        The variables are the tiling of the value's class and, for a value that may be partial, the
        loops of the defining op.
        """
        variables = self.variables
        x = variables.of_value(v)
        if x < 0:
            return (), np.ones(())
        tiles, maker = variables.sets[x], variables.makers.get(v, NONE)
        if maker < 0:
            return (x,), self._cached((id(tiles),), [tiles])
        made = variables.sets[maker]
        key = (id(tiles), id(made))
        found = self._known.get(key)
        if found is None:
            codes = effective_tiles(tiles.codes[:, None, :], made.deferred[None, :, :])
            found = self._known[key] = self.of_codes(codes)
        return (x, maker), found

    def stored(self, v: int) -> tuple[Scope, Floats]:
        """Fraction of a value's bytes on one device, with padding, and the table's variables."""
        scope, share = self.value(v)
        if v not in self._padding:
            return scope, share
        return scope, share * self._padding.of_codes(v, self._codes(scope), self._sizes)

    def copied(self, c: int, copies: LayoutCopies) -> tuple[Scope, Floats]:
        """Bytes of a copy between layouts over those of the whole value, and the variables."""
        scope, share = self.value(int(copies.value[c]))
        return scope, share * copies.of_codes(c, self._codes(scope), self._sizes)

    def _codes(self, scope: Scope) -> Ints:
        """[..., axes] tiles of a value with the scope of `value`."""
        if not scope:
            return np.full(len(self._sizes), NONE)
        codes = self.variables.sets[scope[0]].codes
        if len(scope) == 1:
            return codes
        made = self.variables.sets[scope[1]]
        return effective_tiles(codes[:, None, :], made.deferred[None, :, :])

    def op(self, op_id: int) -> tuple[Scope, Floats]:
        """Share of an op's work."""
        variables, graph = self.variables, self.variables.graph
        q, op = int(variables.of_op[op_id]), graph.module.ops[op_id]
        if q >= 0 and variables.own_loops[op_id]:
            return (q,), self._cached((id(variables.sets[q]),), [variables.sets[q]])
        x = variables.of_value(op.results[0].id) if op.results and not op.regions else NONE
        if x < 0:
            return (), np.ones(())
        tiles = variables.sets[x]
        if q < 0:
            return (x,), self._cached((id(tiles),), [tiles])
        key = (id(tiles), id(variables.sets[q]), 0)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self.of_codes(loops_of(tiles, variables.sets[q]))
        return (x, q), found

    def loops(self, op_id: int) -> tuple[Scope, Ints]:
        """[..., axes] loops of an op, and the variables of `op`."""
        variables, graph = self.variables, self.variables.graph
        q, op, rule = int(variables.of_op[op_id]), graph.module.ops[op_id], graph.rules[op_id]
        if q >= 0 and variables.own_loops[op_id]:
            return (q,), variables.sets[q].codes
        x = variables.of_value(op.results[0].id) if op.results and not op.regions else NONE
        if x < 0:
            return (), np.full(len(self._sizes), NONE)
        tiles = variables.sets[x]
        dims = np.array([*rule.results[0], NONE], dtype=np.int64)  # NONE at dim NONE, the last
        if q < 0:
            return (x,), dims[np.maximum(tiles.codes, NONE)]
        loops = loops_of(tiles, variables.sets[q])
        return (x, q), dims[np.maximum(loops, NONE)]

    def _cached(self, key: tuple[int, ...], sets: Sequence[LabelSet]) -> Floats:
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self.of_codes(sets[0].codes)
        return found
