"""Redistributions of a program as tables: of operands before their uses, of results after."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence

import numpy as np

from partir_search.ir.core import Op, Value
from partir_search.ir.manual import Spec
from partir_search.ir.mesh import MeshShape
from partir_search.ir.partition import Layout, Partial, Window, whole_where_uneven, windows_of
from partir_search.ir.rule import NONE, OpRule
from partir_search.lowering.home_layouts import taken_from
from partir_search.simulator.arrays import Bools, Ints
from partir_search.simulator.tables.label_sets import FIRST_PASS, LabelSet
from partir_search.simulator.tables.prices import Fetches, Pricer, Prices
from partir_search.simulator.tables.shares import effective_tiles, loops_of
from partir_search.simulator.tables.sums import Scope
from partir_search.simulator.tables.variables import Variables
from partir_search.simulator.tables.ways import Way, loop_layout, mapped, rows, tile_layout


@dataclasses.dataclass(frozen=True, eq=False)
class MoveTable:
    """Redistribution of one value for one op, over at most two variables.

    Attributes:
      op / value: ids; op is NONE for results of a region.
      settles: the value is moved to where it rests, after its op.
      scope: variables, one axis of each table below.
      items: number of the redistribution.
      prices: by number.
      reduces / times: runs in a step of reductions, and of all further steps.
      windows: the move takes windows of the value, once the value is in their layout.
    """

    op: int
    value: int
    settles: bool
    scope: Scope
    items: Ints
    prices: Prices
    reduces: float
    times: float
    windows: bool

    def fetches(self, labels: Sequence[int]) -> Fetches:
        """Blocks that devices fetch for windows at one labelling."""
        return self.prices.fetches_of(int(self.items[tuple([labels[x] for x in self.scope])]))


class MoveTables:
    """Tables of the moves of one op after another, for one order of axes."""

    def __init__(self, variables: Variables, pricer: Pricer, order: Sequence[int]) -> None:
        self.variables, self.pricer, self.order = variables, pricer, tuple(order)
        self._regions = pricer.model.memory.regions
        self.ways = pricer.ways
        self._known: dict[Hashable, tuple[Ints, Ints | None]] = {}
        self._settled: dict[Hashable, Ints] = {}
        self._moving: dict[int, tuple[bool, Ints]] = {}

    def of_op(self, op: Op, trips: float) -> list[MoveTable]:
        """Tables of an op without regions, whose region runs `trips` times in a step."""
        variables, rule = self.variables, self.variables.graph.rules[op.id]
        q = int(variables.of_op[op.id])
        found: list[MoveTable] = []
        if q < 0:
            return found  # its operands and results rest where the op needs and makes them
        for i, v in op.inputs() if not rule.accepts_any_layout else ():
            if v.type.shape:
                x = variables.of_value(v.id)
                items, windows = self._needs(op, rule, i, v, q, x)
                found.append(self.table(op, v, (q, x), items, trips))
                if windows is not None:
                    found.append(self.table(op, v, (q, x), windows, trips, windows=True))
        for i, r in enumerate(op.results):
            x = variables.of_value(r.id)
            items = self._settles(op, rule, i, r, q, x)
            scope = (q, x) if x >= 0 else (q,)
            found.append(self.table(op, r, scope, items, trips, settles=True))
        return found

    def table(
        self,
        op: Op | None,
        value: Value,
        scope: Scope,
        items: Ints,
        trips: float,
        *,
        settles: bool = False,
        windows: bool = False,
    ) -> MoveTable:
        """Table of redistributions given per labels of a scope."""
        prices = self.pricer.prices(value, op, settles=settles, windows=windows)
        once, each = self._runs(op, value)
        number = op.id if op else NONE
        runs = once * trips, each * trips
        return MoveTable(number, value.id, settles, scope, items, prices, *runs, windows)

    def any_moves(self, table: MoveTable) -> bool:
        """True if some labels call for a move."""
        found = self._moving.get(id(table.items))
        if found is None:
            found = self._moving[id(table.items)] = self.ways.any_moves(table.items), table.items
        return found[0]

    def _runs(self, op: Op | None, value: Value) -> tuple[float, float]:
        """Executions of a move per run of its region: of a reduction, and of any other step."""
        regions = self._regions
        each = regions.moves(op, value)
        return regions.summed.get(value.id, each), each

    def _loops(self, q: int, x: int, own: bool) -> Ints:
        """[labels of the op, tilings or 1, axes] loops."""
        sets = self.variables.sets
        if own or x < 0:
            return np.maximum(sets[q].codes, NONE)[:, None, :]
        return loops_of(sets[x], sets[q]).transpose(1, 0, 2)

    def _needs(
        self, op: Op, rule: OpRule, i: int, v: Value, q: int, x: int
    ) -> tuple[Ints, Ints | None]:
        """Redistributions of an operand for the op: to the loops' layout, and of windows alone.

        The second is None if the op reads no windows of the operand.
        """
        sets, own = self.variables.sets, bool(self.variables.own_loops[op.id])
        through, shape = self._through(op, v, sets[q]), v.type.shape
        reads = any(r.operand == i for r in rule.reads)
        sets_of = id(sets[q]), id(sets[x]), own, through.tobytes()
        plain = not reads and rule.manual is None
        form = rule.operands[i], rule.major_factors
        key: Hashable = (form, sets_of) if plain else (id(rule), i, shape, sets_of)
        found = self._known.get(key)
        if found is None:
            order, mesh, dims = self.order, self.variables.mesh, rule.operands[i]

            def need(loops: tuple[int, ...]) -> Needed:
                if rule.manual is not None:
                    return spec_layout(rule.manual.needs[i], mesh), ()
                layout = loop_layout(loops, rule, dims, order)
                layout = whole_where_uneven(rule, i, layout, shape, mesh)
                return layout, windows_of(rule, i, loops, order, mesh)

            rest = mapped(
                rows(effective_tiles(sets[x].codes[None], through[:, None, :])),
                lambda each: tile_layout(each, len(shape), order),
            )
            needed = mapped(rows(self._loops(q, x, own)), need)
            whole = self.ways.paired(needed, rest, _to_loops, "operands")
            alone = self.ways.paired(needed, rest, _windows_alone, "windows") if reads else None
            found = self._known[key] = whole, alone
        return found

    def _through(self, op: Op, v: Value, labels: LabelSet) -> Bools:
        """[labels, axes] the op passes on partial results of this operand."""
        passes = self.variables.deferrals.passes.get(op.id, ())
        found = np.zeros(labels.codes.shape, dtype=np.bool_)
        for i, p in enumerate(passes):
            if v.id in p.values:
                found |= labels.codes == FIRST_PASS - i
        return found

    def _settles(self, op: Op, rule: OpRule, i: int, r: Value, q: int, x: int) -> Ints:
        variables, order, dims = self.variables, self.order, rule.results[i]
        sets, own = variables.sets, bool(variables.own_loops[op.id])
        defers = r.id in variables.makers
        monoids = tuple(p.monoid for p in variables.deferrals.passes.get(op.id, ()))
        form = rule.results[i], rule.major_factors, rule.reducers
        made_by: Hashable = form if rule.manual is None else (id(rule), i)
        key = (made_by, id(sets[q]), id(sets[x]) if x >= 0 else NONE, own, defers, monoids)
        found = self._settled.get(key)
        if found is not None:
            return found
        axes, rank = len(order), len(r.type.shape)
        tiles = sets[x].codes[None] if x >= 0 else np.full((1, 1, axes), NONE)
        deferred = (sets[q].deferred & defers)[:, None, :]
        passing = np.minimum(sets[q].codes, NONE)[:, None, :]  # codes of passes alone
        made = np.where(passing < NONE, passing, self._loops(q, x, own))
        made = np.concatenate(
            (made, np.broadcast_to(deferred, made.shape).astype(np.int64)), axis=-1
        )

        def source(make: tuple[int, ...]) -> tuple[Layout, Partial, Partial]:
            codes, stays = make[:axes], make[axes:]
            partial = []
            for a in order:
                if codes[a] < NONE:
                    partial.append((a, monoids[FIRST_PASS - codes[a]]))
                elif codes[a] >= 0 and rule.dim_of(dims, codes[a]) < 0:
                    partial.append((a, rule.reducers[codes[a]]))
            keep = tuple(p for p in partial if stays[p[0]])
            if rule.manual is not None:
                return spec_layout(rule.manual.makes[i], variables.mesh), tuple(partial), keep
            return loop_layout(codes, rule, dims, order), tuple(partial), keep

        rest = mapped(
            rows(effective_tiles(tiles, deferred)), lambda each: tile_layout(each, rank, order)
        )
        found = self.ways.paired(
            mapped(rows(made), source),
            rest,
            lambda made, target: Way(made[0], made[1], target, made[2]),
            "results",
        )
        found = self._settled[key] = found if x >= 0 else found[:, 0]
        return found


def spec_layout(spec: Spec, mesh: MeshShape) -> Layout:
    """Layout of a user's own spec (`Partition.needs`)."""
    return tuple(tuple(a for name in axes for a in mesh.axes(name)) for axes in spec)


Needed = tuple[Layout, tuple[Window, ...]]
"""Layout and windows of an operand that loops need."""


def _to_loops(needed: Needed, home: Layout) -> Way:
    """Redistribution of an operand to the layout of loops, windows apart."""
    layout, windows = needed
    return Way(home, (), taken_from(home, layout, windows) if windows else layout, ())


def _windows_alone(needed: Needed, home: Layout) -> Way:
    """The halo exchanges of windows alone, once an operand is in its layout; no move without."""
    target = _to_loops(needed, home).target
    return Way(target, (), target, (), needed[1])
