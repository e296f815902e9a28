"""A partition: a module plus, per mesh axis, two flat arrays.

`loops[axis][op.id]` is the factor looped over by the op (or `NONE`); `tiles[axis][value.id]` is the
tiled dim of the value (or `NONE`, or `REPLICATED` by decision). Layouts, partial sums and loop
nests are derived.
"""

from __future__ import annotations

import dataclasses
import math
from array import array
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from partir_search.ir.analysis.axis_rows import AxisRows, axis_rows
from partir_search.ir.analysis.def_use import DefUse
from partir_search.ir.analysis.module_analysis import ModuleAnalysis
from partir_search.ir.axis_options import NO_MODES, Modes
from partir_search.ir.boundaries import Beyond
from partir_search.ir.core import Module, Op, Shape, Value
from partir_search.ir.manual import Spec
from partir_search.ir.mesh import MeshShape
from partir_search.ir.rule import NONE, Dims, OpRule
from partir_search.ir.skewed_schedule import OUTPUT_STATIONARY, Ring, ring_of

Layout = tuple[tuple[int, ...], ...]  # per dim, the tiling axes, major to minor
Partial = tuple[tuple[int, str], ...]  # (axis, monoid) of each unfinished reduction


@dataclasses.dataclass(frozen=True, slots=True)
class Window:
    """Stretch of one dim read by each device: its tile with halos.

    Attributes:
      dim: the dim.
      axes: tiling axes, major to minor.
      starts: first element by joint position along `axes`; may lie before the dim's start.
      size: number of elements, equal on all devices.
      beyond: padding beyond the dim's ends; zeros if None.
    """

    dim: int
    axes: tuple[int, ...]
    starts: tuple[int, ...]
    size: int
    beyond: Beyond | None = None


@dataclasses.dataclass(eq=False, slots=True)
class Partition:
    """Assignment of mesh axes to the ops (loops) and values (tiles) of `module`.

    Attributes:
      rules: rule per op id.
      axes: loops and tiles per mesh axis.
      analysis: facts of the module and its rules, shared by all partitions.
      order: axes from major to minor, for dims tiled by several axes.
      modes: options of axes besides tiling.
    """

    module: Module
    mesh: MeshShape
    rules: Sequence[OpRule]
    axes: Sequence[AxisRows]
    analysis: ModuleAnalysis
    order: tuple[int, ...] = ()
    modes: Modes = NO_MODES

    def __post_init__(self) -> None:
        inner = _inner_loops(self)
        if not self.order:
            self.order = axis_order(self, inner)
        while broken := [(axis, op) for axis, op in inner if not self._stacks(axis, op)]:
            self._drop(broken)
            inner = _inner_loops(self)

    def _stacks(self, axis: int, op: int) -> bool:
        """True if more major axes divide the major factors of the factor on `axis` completely."""
        rule = self.rules[op]
        major = self.order[: self.order.index(axis)]
        for g in rule.majors_of(self.axes[axis].loops[op]):
            looped = [a for a in range(len(self.axes)) if self.axes[a].loops[op] == g]
            if (
                not set(looped) <= set(major)
                or self.tiles_of(self.module.ops[op], g) != (rule.sizes[g])
            ):
                return False
        return True

    def _drop(self, broken: Sequence[tuple[int, int]]) -> None:
        """Removes loops of ops, on copies of the rows: states share rows."""
        self.axes = list(self.axes)
        for axis in {axis for axis, _ in broken}:
            loops, tiles = self.axes[axis].loops[:], self.axes[axis].tiles[:]
            for op in (op for a, op in broken if a == axis):
                loops[op] = NONE
            self.axes[axis] = axis_rows(self.analysis, loops, tiles, self.axes[axis].defers)

    @property
    def def_use(self) -> DefUse:
        """Def-use analysis of the module."""
        return self.analysis.def_use

    @property
    def loops(self) -> list[array[int]]:
        """[axes][ops] factor or NONE."""
        return [rows.loops for rows in self.axes]

    @property
    def tiles(self) -> list[array[int]]:
        """[axes][values] dim, NONE or REPLICATED."""
        return [rows.tiles for rows in self.axes]

    @property
    def partials(self) -> list[Mapping[int, str]]:
        """[axes] monoid by value id, for values partial at rest."""
        return [rows.partials for rows in self.axes]

    def layout(self, value: Value) -> Layout:
        """Layout of `value` at rest."""
        rank = len(value.type.shape)
        if not rank:
            return ()
        dims: list[tuple[int, ...]] = [()] * rank
        for axis in self.order:
            d = self.axes[axis].tiles[value.id]
            if d >= 0:
                dims[d] = (*dims[d], axis)
        return tuple(dims)

    def op_layout(self, op: Op, dims: Dims) -> Layout:
        """Layout of an operand or result with factors `dims` under the op's loops."""
        out: list[tuple[int, ...]] = [()] * len(dims)
        rule = self.rules[op.id]
        for axis in self.order:
            f = self.axes[axis].loops[op.id]
            if f >= 0:
                d = rule.dim_of(dims, f)
                if d >= 0:
                    out[d] = (*out[d], axis)
        return tuple(out)

    def needs(self, op: Op) -> tuple[Layout, ...]:
        """Layout required of each operand by the op."""
        rule = self.rules[op.id]
        if rule.manual is not None:
            return tuple(map(self._spec_layout, rule.manual.needs))
        if rule.accepts_any_layout:
            return tuple(self.layout(x) if isinstance(x, Value) else () for x in op.operands)
        return tuple(
            whole_where_uneven(rule, i, self.op_layout(op, dims), x.type.shape, self.mesh)
            for i, (dims, x) in enumerate(zip(rule.operands, op.operands, strict=True))
        )

    def windows(self, op: Op) -> dict[int, tuple[Window, ...]]:
        """Windows read by the op's loops instead of tiles, by operand position."""
        rule = self.rules[op.id]
        if not rule.reads:
            return {}
        loops = [rows.loops[op.id] for rows in self.axes]
        found = {
            i: windows_of(rule, i, loops, self.order, self.mesh)
            for i in dict.fromkeys(r.operand for r in rule.reads)
        }
        return {i: windows for i, windows in found.items() if windows}

    def makes(self, op: Op) -> tuple[Layout, ...]:
        """Layout of each result as made by the op."""
        rule = self.rules[op.id]
        if rule.manual is not None:
            return tuple(map(self._spec_layout, rule.manual.makes))
        return tuple(self.op_layout(op, dims) for dims in rule.results)

    def _spec_layout(self, spec: Spec) -> Layout:
        return tuple(tuple(a for name in axes for a in self.mesh.axes(name)) for axes in spec)

    def ring(self, op: Op) -> Ring | None:
        """Ring schedule of the op, if it loops over two axes and their diagonal."""
        rule = self.rules[op.id]
        for axes in self.mesh.triples:
            r, c, d = (self.axes[a].loops[op.id] for a in axes)
            if r >= 0 and c >= 0 and d >= 0:
                types = [x.type for x in (*op.operands, *op.results)]
                layouts = (self.op_layout(op, x) for x in (*rule.operands, *rule.results))
                shapes = (self.local_shape(t.shape, x) for t, x in zip(types, layouts, strict=True))
                nbytes = [math.prod(s) * t.itemsize for s, t in zip(shapes, types, strict=True)]
                form = self.modes.ring_schedules.get(axes[2], OUTPUT_STATIONARY)
                return ring_of(rule, axes, self.mesh.sizes[axes[0]], (r, c, d), form, nbytes)
        return None

    def ring_operands(self, op: Op) -> dict[int, tuple[int, ...]]:
        """Axes of rings on which an operand's blocks pass between devices, by operand position.

        An operand passes on axes with ring attention on which it is tiled at rest and the op loops.
        """
        rule, found = self.rules[op.id], dict[int, tuple[int, ...]]()
        if rule.blockwise is None:
            return found
        for i, v in op.inputs():
            if i in rule.blockwise.passing:
                dim = rule.operands[i].index(rule.blockwise.factor)
                on = [a for a in self.order if self.axes[a].tiles[v.id] == dim]
                if on and all(
                    a in self.modes.windowed_einsums and self.axes[a].loops[op.id] >= 0 for a in on
                ):
                    found[i] = tuple(on)
        return found

    def is_zigzag(self, op: Op, axes: tuple[int, ...]) -> bool:
        """True if each device's block on the rings over `axes` is one early and one late chunk.

        Requires the zigzag option on the axes, a causal op, equal lengths of queries and keys that
        divide by twice the number of devices, and no loop over queries on an axis not in `axes`.
        """
        rule, size = self.rules[op.id], self.mesh.size(axes)
        how, sizes = rule.blockwise, rule.sizes
        if how is None or not how.causal or not self.modes.windowed_einsums[axes[0]]:
            return False
        looped = {a for a, rows in enumerate(self.axes) if rows.loops[op.id] == how.along}
        even = sizes[how.along] == sizes[how.factor] and sizes[how.along] % (2 * size) == 0
        return even and looped == set(axes)

    def partial_result(self, op: Op, result: int) -> Partial:
        """Reductions left unfinished in result number `result` of an op."""
        rule, out = self.rules[op.id], []
        ring = self.ring(op)
        summed = ring.axes[ring.summed] if ring else NONE
        for axis in self.order:
            f = self.axes[axis].loops[op.id]
            if axis == summed:
                continue
            if f >= 0 and rule.dim_of(rule.results[result], f) < 0:
                out.append((axis, rule.reducers[f]))
            elif f < 0:
                partials = self.axes[axis].partials
                out += [(axis, partials[v.id]) for _, v in op.inputs() if v.id in partials][:1]
        return tuple(out)

    def partial_at_rest(self, value: Value) -> Partial:
        """Unfinished reductions of `value` at rest, (axis, monoid) pairs in the order of axes."""
        each = ((a, self.axes[a].partials.get(value.id)) for a in self.order)
        return tuple((a, monoid) for a, monoid in each if monoid)

    def tiles_of(self, op: Op, factor: int) -> int:
        """Number of tiles along a factor of the op."""
        n = 1
        for rows, size in zip(self.axes, self.mesh.sizes, strict=True):
            if rows.loops[op.id] == factor:
                n *= size
        return n

    def local_shape(self, shape: Shape, layout: Layout) -> Shape:
        out = []
        for n, axes in zip(shape, layout, strict=True):
            for axis in axes:
                n //= self.mesh.sizes[axis]
            out.append(n)
        return tuple(out)


def windows_of(
    rule: OpRule, operand: int, loops: Sequence[int], order: Sequence[int], mesh: MeshShape
) -> tuple[Window, ...]:
    """Windows of an operand read by loops instead of tiles.

    Args:
      loops: [axes] factors.
      order: axes from major to minor.
    """
    found: list[Window] = []
    for r in rule.reads:
        f = rule.operands[r.operand][r.dim]
        axes = tuple(a for a in order if loops[a] == f)
        if r.operand == operand and axes:
            tiles = mesh.size(axes)
            each = [r.tile_window(i, rule.sizes[f] // tiles) for i in range(tiles)]
            starts = tuple(start for start, _ in each)
            found.append(Window(r.dim, axes, starts, each[0][1], r.beyond))
    return tuple(found)


def whole_where_uneven(
    rule: OpRule, operand: int, layout: Layout, shape: Shape, mesh: MeshShape
) -> Layout:
    """Layout of an operand without the axes on dims that are read by windows and do not divide."""
    for r in rule.reads:
        if r.operand == operand:
            n = shape[r.dim]
            if not n or n % mesh.size(layout[r.dim]):
                layout = (*layout[: r.dim], (), *layout[r.dim + 1 :])
    return layout


def _inner_loops(partition: Partition) -> list[tuple[int, int]]:
    """(axis, op) of loops over a minor factor of a dim with several factors."""
    return [(axis, op) for axis, rows in enumerate(partition.axes) for op in rows.inner]


def axis_order(partition: Partition, inner: Sequence[tuple[int, int]] = ()) -> tuple[int, ...]:
    """Major to minor order of axes: axes gathered at uses come last.

    If several axes tile one dim and an op needs the dim tiled on some of them only, the remaining
    axes must be minor, to be removed by one all_gather. On ties the order of the mesh is kept.
    Sub-axes of one axis stay together. `modes.axis_orders` has priority over all of this.

    Args:
      inner: (axis, op) of loops over minor factors; their axes come after the axes of the major
        factors as far as possible.
    """
    axes = range(len(partition.axes))
    gathered = [0] * len(axes)
    for a in axes:
        for b in range(a + 1, len(axes)):
            off_a, off_b = partition.axes[a].gathered(partition.axes[b])
            gathered[a] += off_a
            gathered[b] += off_b
    siblings = [partition.mesh.axes(whole) for whole in partition.mesh.whole]
    order = sorted(axes, key=lambda a: (sum(gathered[b] for b in siblings[a]), siblings[a][0], a))
    for b, n in sorted(set(inner)):
        majors = partition.rules[n].majors_of(partition.axes[b].loops[n])
        for a in [a for a in order if partition.axes[a].loops[n] in majors]:
            if order.index(a) > order.index(b):
                order.remove(a)
                order.insert(order.index(b), a)
    return tuple(partition.modes.ordered(order))


def active_ops(partition: Partition) -> npt.NDArray[np.bool_]:
    """[ops] True if an operand or result is in a layout different from its own at rest.

    Always True for ops with regions, windows or blockwise forms, and for user's shard_maps.
    """
    found = partition.analysis.always_active
    for rows in partition.axes:
        found = found | rows.active
    return found
