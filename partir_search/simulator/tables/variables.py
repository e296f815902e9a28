"""Variables of the tables: the tiling of each class, and the loops of each op that has any."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from partir_search.ir.core import Op
from partir_search.ir.mesh import MeshShape
from partir_search.ir.partition import Partition
from partir_search.ir.rule import NONE
from partir_search.propagation.graph import Graph
from partir_search.propagation.state import State
from partir_search.simulator.arrays import Bools, Ints
from partir_search.simulator.tables.deferrals import Deferrals, find_deferrals
from partir_search.simulator.tables.label_sets import (
    FIRST_PASS,
    LabelIndex,
    LabelSet,
    class_labels,
    op_labels,
)


@dataclasses.dataclass(frozen=True, eq=False)
class Variables:
    """Labels of classes and ops of a graph on a mesh.

    Attributes:
      sets: [variables] labels of each.
      of_class: [classes] variable of the class's tiling, or NONE: scalars.
      of_op: [ops] variable of the op's loops, or NONE: ops with regions, and ops whose loops are
        the tiling of their result's class.
      own_loops: [ops] the op's label holds its loops; else passes alone.
      deferrals: reductions that some partition may defer.
    """

    graph: Graph
    mesh: MeshShape
    sets: Sequence[LabelSet]
    of_class: Ints
    of_op: Ints
    own_loops: Bools
    deferrals: Deferrals

    @property
    def sizes(self) -> list[int]:
        """[variables] numbers of labels."""
        return list(map(len, self.sets))

    def of_value(self, v: int) -> int:
        """Variable of a value's class, or NONE."""
        return int(self.of_class[self.graph.class_of[v]])

    @functools.cached_property
    def makers(self) -> Mapping[int, int]:
        """By id of a value that may be partial at rest: the variable of the op that makes the
        value.
        """
        return {
            r.id: int(self.of_op[op.id])
            for op in self.graph.module.ops
            for r in op.results
            if r.id in self.deferrals.values
        }

    def labels_of(self, partition: Partition) -> Ints:
        """Labels of a partition of the graph's module; without its loops on axes of one device.

        Raises:
          ValueError: the partition has modes that tables do not know: copies held, products walked
            block by block, arguments in layouts of their own.
        """
        modes = partition.modes
        if (
            modes.windowed_einsums
            or modes.keep_gathered
            or modes.ring_schedules
            or modes.argument_layouts
            or modes.result_layouts
        ):
            raise ValueError(f"costs are not pairwise under {modes}")
        real = [a for a, n in enumerate(self.mesh.sizes) if n > 1]
        rows, axes = partition.axes, len(self.mesh.sizes)
        tiles = np.full((len(self.of_class), axes), NONE, dtype=np.int64)
        loops = np.full((len(self.of_op), axes), NONE, dtype=np.int64)
        stays = np.zeros(loops.shape, dtype=np.bool_)
        class_of = self._class_of
        for a in real:
            finished = ~rows[a].partial_row  # values tiled as their class
            tiles[class_of[finished], a] = rows[a].tile_row[finished]
            loops[self.own_loops, a] = np.asarray(rows[a].loops)[self.own_loops]
            for op_id in {i for v in rows[a].partials for i in self._ops_near.get(v, ())}:
                op = self.graph.module.ops[op_id]
                loops[op_id, a], stays[op_id, a] = self._entry(partition, op, a)
        labels = np.zeros(len(self.sets), dtype=np.int64)
        index = self._index
        for of, codes, deferred in (
            (self.of_class, tiles, np.zeros(tiles.shape, dtype=np.bool_)),
            (self.of_op, loops, stays),
        ):
            some = np.flatnonzero(of >= 0)
            labels[of[some]] = index.labels(of[some], codes[some], deferred[some])
        return labels

    @functools.cached_property
    def _index(self) -> LabelIndex:
        return LabelIndex(self.sets)

    @functools.cached_property
    def _class_of(self) -> Ints:
        return np.array(self.graph.class_of, dtype=np.int64)

    @functools.cached_property
    def _ops_near(self) -> Mapping[int, Sequence[int]]:
        """By value id, ops with a variable that make or read the value."""
        found: dict[int, list[int]] = {}
        for op in self.graph.module.ops:
            if self.of_op[op.id] >= 0:
                for v in (*op.results, *(v for _, v in op.inputs())):
                    found.setdefault(v.id, []).append(op.id)
        return found

    def assign(self, labels: Ints, state: State) -> None:
        """Gives a state the tilings and loops of labels, whatever decisions would lead there."""
        first, codes = self._codes
        chosen = codes[first + labels]  # [variables, axes]
        tiled, node, op_of = self.of_class >= 0, *self._nodes
        for a in range(len(self.mesh.sizes)):
            row = np.frombuffer(state.tiles[a], dtype=np.int8)
            row[:] = np.where(tiled, chosen[self.of_class, a], NONE)
            loops = np.frombuffer(state.loops[a], dtype=np.int8)
            loops[node] = np.maximum(chosen[self.of_op[op_of], a], NONE)

    @functools.cached_property
    def _codes(self) -> tuple[Ints, Ints]:
        """[variables] place of each variable's first label, and [all labels, axes] codes."""
        ends = np.cumsum([0, *self.sizes])
        axes = len(self.mesh.sizes)
        codes = [labels.codes for labels in self.sets]
        return ends[:-1], np.concatenate([np.zeros((0, axes), dtype=np.int64), *codes])

    @functools.cached_property
    def _nodes(self) -> tuple[Ints, Ints]:
        """Nodes of ops, and the ops."""
        pairs = [(n, op_id) for op_id, n in enumerate(self.graph.node_of) if n >= 0]
        found = np.array(pairs, dtype=np.int64).reshape(-1, 2)
        return found[:, 0], found[:, 1]

    def _entry(self, partition: Partition, op: Op, axis: int) -> tuple[int, bool]:
        """Loop or pass of an op along an axis, and whether its results stay partial."""
        rows = partition.axes[axis]
        stays = any(r.id in rows.partials for r in op.results)
        code = int(rows.loops[op.id]) if self.own_loops[op.id] else NONE
        partial = {v.id: rows.partials[v.id] for _, v in op.inputs() if v.id in rows.partials}
        if partial:
            passes = self.deferrals.passes[op.id]
            found = (
                i
                for i, p in enumerate(passes)
                if p.values == partial.keys() and p.monoid in partial.values()
            )
            code = FIRST_PASS - next(found)
        return code, stays


def variables_of(
    graph: Graph,
    mesh: MeshShape,
    start: State | None = None,
    *,
    max_labels: float = math.inf,
    max_choices: float = math.inf,
) -> Variables:
    """Variables of a graph.

    Args:
      start: state whose closed dims no label tiles.
      max_labels: limit of the labels of all variables.
      max_choices: limit of the labels of one variable.

    Raises:
      ValueError: the mesh has diagonals, the program more labels than allowed, or a loop keeps
        partial sums.
    """
    if mesh.triples:
        raise ValueError("rings are not pairwise: tables are of meshes without diagonals")
    if graph.analysis.accumulators:
        raise ValueError("sums that a loop accumulates are not pairwise")
    module, rules = graph.module, graph.rules
    deferrals = find_deferrals(module, rules, graph.analysis, max_choices)
    sets: list[LabelSet] = []
    known: dict[Hashable, LabelSet] = {}
    of_class = np.full(len(graph.shapes), NONE, dtype=np.int64)
    of_op = np.full(len(module.ops), NONE, dtype=np.int64)
    own_loops = np.zeros(len(module.ops), dtype=np.bool_)
    axes = range(len(mesh.sizes))
    total = 0

    def add(labels: LabelSet) -> int:
        nonlocal total
        total += len(labels)
        if total > max_labels:
            raise ValueError(f"{total} labels or more")
        sets.append(labels)
        return len(sets) - 1

    contents: dict[Hashable, LabelSet] = {}

    def interned(labels: LabelSet) -> LabelSet:
        key = labels.codes.tobytes(), labels.deferred.tobytes()
        return contents.setdefault(key, labels)

    for c, extents in enumerate(graph.extents):
        if extents:
            each = tuple(start.shapes[a][c] if start else extents for a in axes)
            if each not in known:
                known[each] = interned(class_labels(each, mesh.sizes, max_choices))
            of_class[c] = add(known[each])
    for op in module.ops:
        own = graph.node_of[op.id] >= 0
        passes = deferrals.passes.get(op.id, ())
        if op.regions or not (own or passes):
            continue
        rule = rules[op.id]
        deferrable = any(r.id in deferrals.values for r in op.results)
        key = (id(rule), own, deferrable, tuple(p.ends for p in passes))
        if key not in known:
            labels = op_labels(rule, mesh.sizes, own, deferrable, key[3], max_choices)
            known[key] = interned(labels)
        of_op[op.id], own_loops[op.id] = add(known[key]), own
    return Variables(graph, mesh, sets, of_class, of_op, own_loops, deferrals)
