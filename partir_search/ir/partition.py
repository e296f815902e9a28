"""A partition: the base module plus, per mesh axis, two flat arrays.

`loops[axis][op.id]` is the factor that the op loops over (or `NONE`), `tiles[axis][value.id]` the
dim on which the value is tiled (or `NONE`, or `REPLICATED` by decision).
Layouts, partial sums and loop nests are derived.
"""

from __future__ import annotations

import dataclasses
import math
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

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
from partir_search.ir.skewed_schedule import RESULT, Ring, ring_of

Layout = tuple[tuple[int, ...], ...]  # per dim, the axes that tile it, major to minor
Pending = tuple[tuple[int, str], ...]  # (axis, monoid) of unfinished reductions


@dataclasses.dataclass(frozen=True, slots=True)
class Window:
    """The stretch of one dim that each device needs.

    Attributes:
      axes: major to minor; `starts` is by position along them jointly.
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
      axes: per mesh axis, its loops and tiles.
      analysis: facts of the module and its rules that all partitions share.
      order: axes from major to minor, the order in which several axes tile one dim.
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
        """True if major axes use up the factors above the one that `axis` loops over."""
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
        """Takes loops off ops; the rows are shared with other states and therefore copied."""
        self.axes = list(self.axes)
        for axis in {axis for axis, _ in broken}:
            loops, tiles = self.axes[axis].loops[:], self.axes[axis].tiles[:]
            for op in (op for a, op in broken if a == axis):
                loops[op] = NONE
            self.axes[axis] = axis_rows(self.analysis, loops, tiles, self.axes[axis].defers)

    @property
    def def_use(self) -> DefUse:
        """Ops that make and use each value of the module."""
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
        """[axes] monoids of values that are partial at rest, by value id."""
        return [rows.partials for rows in self.axes]

    def layout(self, value: Value) -> Layout:
        """The layout in which `value` rests."""
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
        """Layout that the op's loops give to an operand or result of factors `dims`."""
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
        """Layouts in which the op needs its operands."""
        rule = self.rules[op.id]
        if rule.manual is not None:
            return tuple(map(self._spec_layout, rule.manual.needs))
        if rule.rests:
            return tuple(self.layout(x) if isinstance(x, Value) else () for x in op.operands)
        layouts = tuple(self.op_layout(op, dims) for dims in rule.operands)
        for r in rule.reads:
            layout, n = layouts[r.operand], op.operands[r.operand].type.shape[r.dim]
            if not n or n % self.mesh.size(layout[r.dim]):
                layouts = _replaced(layouts, r.operand, _replaced(layout, r.dim, ()))
        return layouts

    def windows(self, op: Op) -> dict[int, tuple[Window, ...]]:
        """By operand position, the stretches that the op's loops read instead of tiles."""
        rule, found = self.rules[op.id], dict[int, tuple[Window, ...]]()
        for r in rule.reads:
            f = rule.operands[r.operand][r.dim]
            axes = tuple(a for a in self.order if self.axes[a].loops[op.id] == f)
            tiles = self.mesh.size(axes)
            if axes:
                each = [r.stretch(i, rule.sizes[f] // tiles) for i in range(tiles)]
                starts = tuple(start for start, _ in each)
                window = Window(r.dim, axes, starts, each[0][1], r.beyond)
                found[r.operand] = (*found.get(r.operand, ()), window)
        return found

    def makes(self, op: Op) -> tuple[Layout, ...]:
        """Layouts in which the op makes its results."""
        rule = self.rules[op.id]
        if rule.manual is not None:
            return tuple(map(self._spec_layout, rule.manual.makes))
        return tuple(self.op_layout(op, dims) for dims in rule.results)

    def _spec_layout(self, spec: Spec) -> Layout:
        return tuple(tuple(a for name in axes for a in self.mesh.axes(name)) for axes in spec)

    def ring(self, op: Op) -> Ring | None:
        """Skewed schedule of the op in time, if it loops over two axes and their diagonal."""
        rule = self.rules[op.id]
        for axes in self.mesh.triples:
            r, c, d = (self.axes[a].loops[op.id] for a in axes)
            if r >= 0 and c >= 0 and d >= 0:
                types = [x.type for x in (*op.operands, *op.results)]
                layouts = (self.op_layout(op, x) for x in (*rule.operands, *rule.results))
                shapes = (self.local_shape(t.shape, x) for t, x in zip(types, layouts, strict=True))
                nbytes = [math.prod(s) * t.itemsize for s, t in zip(shapes, types, strict=True)]
                form = self.modes.forms.get(axes[2], RESULT)
                return ring_of(rule, axes, self.mesh.sizes[axes[0]], (r, c, d), form, nbytes)
        return None

    def passed(self, op: Op) -> dict[int, tuple[int, ...]]:
        """Operands whose blocks pass around axes while the op works on them, by position: what
        rests tiled where the op needs it whole, on axes that have it pass.
        """
        rule, found = self.rules[op.id], dict[int, tuple[int, ...]]()
        if rule.blockwise is None:
            return found
        for i, v in op.inputs():
            if i in rule.blockwise.passing:
                dim = rule.operands[i].index(rule.blockwise.factor)
                on = [a for a in self.order if self.axes[a].tiles[v.id] == dim]
                if on and all(
                    a in self.modes.streams and self.axes[a].loops[op.id] >= 0 for a in on
                ):
                    found[i] = tuple(on)
        return found

    def zigzags(self, op: Op, axes: tuple[int, ...]) -> bool:
        """Tells whether blocks that pass around axes for an op are two chunks each: where this is
        asked for, no query looks at later keys, and the axes alone tile the sequences, evenly.
        """
        rule, size = self.rules[op.id], self.mesh.size(axes)
        how, sizes = rule.blockwise, rule.sizes
        if how is None or not how.causal or not self.modes.streams[axes[0]]:
            return False
        looped = {a for a, rows in enumerate(self.axes) if rows.loops[op.id] == how.along}
        even = sizes[how.along] == sizes[how.factor] and sizes[how.along] % (2 * size) == 0
        return even and looped == set(axes)

    def partial_result(self, op: Op, result: int) -> Pending:
        """Reductions that an op leaves unfinished in its result number `result`."""
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

    def partial_at_rest(self, value: Value) -> Pending:
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


def _replaced(items: tuple[Any, ...], at: int, new: Any) -> tuple[Any, ...]:
    return (*items[:at], new, *items[at + 1 :])


def _inner_loops(partition: Partition) -> list[tuple[int, int]]:
    """(axis, op) where the axis loops over a factor that is beneath another one on some dim."""
    return [(axis, op) for axis, rows in enumerate(partition.axes) for op in rows.inner]


def axis_order(partition: Partition, inner: Sequence[tuple[int, int]] = ()) -> tuple[int, ...]:
    """Major to minor order of axes: those that are gathered away at uses come last.

    Where one dim is tiled by several axes and an op needs it on some of them only, the axes it
    does not need must be minor, so that one all_gather takes them off. Ties keep the mesh's order,
    and so do parts of one axis of the user's. What `modes.nests` says goes before all else.

    Args:
      inner: (axis, op) of loops over factors beneath others; these axes come after those of the
        others, where all can be pleased.
    """
    axes = range(len(partition.axes))
    gathered = [0] * len(axes)
    for a in axes:
        for b in range(a + 1, len(axes)):
            off_a, off_b = partition.axes[a].gathered(partition.axes[b])
            gathered[a] += off_a
            gathered[b] += off_b
    parts = [partition.mesh.axes(whole) for whole in partition.mesh.whole]
    order = sorted(axes, key=lambda a: (sum(gathered[b] for b in parts[a]), parts[a][0], a))
    for b, n in sorted(set(inner)):
        majors = partition.rules[n].majors_of(partition.axes[b].loops[n])
        for a in [a for a in order if partition.axes[a].loops[n] in majors]:
            if order.index(a) > order.index(b):
                order.remove(a)
                order.insert(order.index(b), a)
    return tuple(partition.modes.nested(order))


def active_ops(partition: Partition) -> npt.NDArray[np.bool_]:
    """[ops] whether some operand or result of the op is needed or made otherwise than it rests.

    Ops with regions always are, also those of the user's own.
    """
    found = partition.analysis.always_active
    for rows in partition.axes:
        found = found | rows.active
    return found
