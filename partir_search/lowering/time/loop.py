"""Writes a program cut in time as a module with one scan over the parts of the batch.

The scan's stacked inputs are the parts of tiled values, its carries accumulate pending reductions,
its stacked outputs are tiled values read after the loop. Reductions over mesh axes of devices are
placed later, by the partition of the new module.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from partir_search.ir.core import Literal, Module, Op, Operand, Region, TensorType, Value
from partir_search.ir.from_jaxpr import FunctionReader
from partir_search.ir.kind import Kind
from partir_search.ir.numbering import number
from partir_search.ir.parts import Parts
from partir_search.ir.reducers import identity
from partir_search.ir.rewriter import RegionRewriter
from partir_search.lowering.local_ir import Instruction, LocalOp, LocalRegion, Reshard
from partir_search.lowering.local_value import LocalValue, Source
from partir_search.lowering.reshard_steps import AllGather, Slice
from partir_search.lowering.time.cut import PartsMeet, TimeCut
from partir_search.lowering.time.kinds import PENDING, TILE, Meeting
from partir_search.lowering.time.part import PartWriter
from partir_search.passes.fresh_names import name_apart
from partir_search.rules.region_parts import with_constant
from partir_search.rules.scans import scan_of
from partir_search.rules.stacks import stacked_type

SCOPE = "microbatches"  # of the ops around the loop
NUMBER = TensorType((), np.dtype(np.int32), 4)
COMBINE = {
    "sum": lax.add,
    "max": lax.max,
    "min": lax.min,
    "and": lax.bitwise_and,
    "or": lax.bitwise_or,
}


def parts_of(cut: TimeCut) -> Parts:
    """Split of dims with the most blocks allowed by all loops over the time axis."""
    partition, axis = cut.program.partition, cut.axis
    count = partition.mesh.sizes[axis]
    sizes = [
        partition.rules[op.id].sizes[f]
        for op, f in zip(partition.module.ops, partition.loops[axis], strict=True)
        if f >= 0
    ]
    tiled = zip(partition.module.values, partition.tiles[axis], strict=True)
    sizes += [v.type.shape[d] for v, d in tiled if d >= 0]
    return Parts(count, math.gcd(*(n // count for n in sizes)))


def looped_in_time(cut: TimeCut, ruled: Iterable[str]) -> Module:
    """Module with the loop over parts as a scan.

    Args:
      ruled: primitives kept as ops where a rule's local form is written in others.

    Raises:
      PartsMeet: an op runs on stretches of a dim only.
    """
    return _Writer(cut, parts_of(cut), FunctionReader(ruled)).module()


@dataclasses.dataclass(eq=False, slots=True)
class _Scope:
    """A region of the loop being written.

    Attributes:
      part: number of the part, an argument of the region if used.
      new: operand by id of the local value.
      outermost: True for the body of the loop over parts.
    """

    outermost: bool = True
    part: Value = dataclasses.field(default_factory=lambda: Value(-1, NUMBER, "part"))
    new: dict[int, Operand] = dataclasses.field(default_factory=dict)
    ops: list[Op] = dataclasses.field(default_factory=list)

    def uses_part(self) -> bool:
        """True if an op reads the number of the part."""
        return any(x is self.part for op in self.ops for x in op.operands)


class _Writer:
    """Module of a cut, written from the loop outwards.

    Attributes:
      whole: new values of the module's values outside of the loop.
      before / after: new ops before and after the loop.
      emitted: ids of the module's ops written outside of the loop.
      consts / stacked: (operand, argument of the loop's body) by id of a local value.
    """

    def __init__(self, cut: TimeCut, parts: Parts, reader: FunctionReader) -> None:
        self.cut, self.parts, self.reader = cut, parts, reader
        self.old = cut.program.partition.module
        self.makers = cut.program.partition.def_use.makers
        self.part_writer = PartWriter(cut.program.partition, cut.axis, parts, reader)
        self.whole = RegionRewriter()
        self.before, self.after = list[Op](), list[Op]()
        self.emitted: set[int] = set()
        self.consts: dict[int, tuple[Operand, Value]] = {}
        self.stacked: dict[int, tuple[Operand, Value]] = {}
        self.outside: dict[int, Operand] = {}  # by id of a local value, after the loop

    def module(self) -> Module:
        """The new module."""
        old, body = self.old, self.cut.program.body
        args = tuple(map(self.whole.value, old.body.args))
        scope = _Scope()
        for item in self.cut.inside:
            self._inside(item, scope)
        loop = self._loop(scope)
        for item in self.cut.after:
            self._after(item)
        results = tuple(map(self._outside, body.results))
        constants: dict[int, tuple[Value, Any]] = {
            id(a): (self.whole.value(old.values[i]), a) for i, a in old.constants.items()
        }
        constants |= self.reader.constants
        ops = (*self.before, *loop, *self.after)
        new = dataclasses.replace(
            old, body=Region(args, ops, results), values=[], ops=[], constants={}
        )
        number(new, constants)
        name_apart(new)
        return new

    # Outside -----------------------------------------------------------------------------------

    def _whole(self, x: Operand) -> Operand:
        """A value of the module outside of the loop, computed before the loop if not known."""
        if isinstance(x, Literal):
            return x
        todo = [x]
        while todo:
            maker = self.makers[todo[-1].id]
            if maker is None or maker.id in self.emitted:
                todo.pop()
                continue
            missing = [v for _, v in maker.inputs() if not self._known(v)]
            if missing:
                todo += missing
            else:
                self._emit(maker, self.before)
        return self.whole.value(x)

    def _known(self, value: Value) -> bool:
        maker = self.makers[value.id]
        return maker is None or maker.id in self.emitted

    def _emit(self, op: Op, ops: list[Op]) -> None:
        ops.append(dataclasses.replace(self.whole.op(op), backward=False))
        self.emitted.add(op.id)

    def _outside(self, source: Source) -> Operand:
        """A local value after the loop, whole."""
        if isinstance(source, Literal):
            return source
        found = self.outside.get(source.id)
        return self._whole(source.value) if found is None else found

    def _after(self, item: Instruction) -> None:
        if isinstance(item, Reshard):
            self.outside[item.target.id] = self._outside(item.source)
        elif item.op.id not in self.emitted:
            operands = tuple(map(self._outside, item.ins))
            regions = tuple(map(self.whole.region, item.op.regions))
            results = tuple(map(self.whole.value, item.op.results))
            new = item.op.with_parts(operands, results, regions)
            self.after.append(dataclasses.replace(new, backward=False))
            self.emitted.add(item.op.id)
            self.outside.update((out.id, r) for out, r in zip(item.outs, results, strict=True))

    # Inside ------------------------------------------------------------------------------------

    def _inside(self, item: Instruction, scope: _Scope) -> None:
        if isinstance(item, Reshard):
            self._reshard(item, scope)
        elif item.regions:
            self._region_op(item, scope)
        else:
            operands = [self._read(x, scope) for x in item.ins]
            ops, results = self.part_writer.write(item, operands, scope.part)
            scope.ops += ops
            scope.new.update((out.id, r) for out, r in zip(item.outs, results, strict=True))

    def _reshard(self, item: Reshard, scope: _Scope) -> None:
        x, step = self._read(item.source, scope), item.step
        if isinstance(step, Slice):
            dim = step.dim
            ops, (x,) = self.part_writer.traced(
                lambda x, part: [self.parts.part(x, dim, part)], (x, scope.part), item.op
            )
            scope.ops += ops
        elif isinstance(step, AllGather):  # of no elements
            shape, dtype = item.target.shape, item.target.value.type.dtype
            ops, (x,) = self.part_writer.traced(lambda: [jnp.zeros(shape, dtype)], (), item.op)
            scope.ops += ops
        scope.new[item.target.id] = x

    def _read(self, source: Source, scope: _Scope) -> Operand:
        """A local value inside of the loop."""
        if isinstance(source, Literal):
            return source
        if source.id in scope.new:
            return scope.new[source.id]
        kind = self.cut.kinds.kind(source)
        if not scope.outermost:  # constants alone are read in regions without being passed
            if kind == TILE:
                raise PartsMeet(Meeting(None, source.value))
            return self.whole.value(source.value)
        maker = self.makers[source.value.id]
        if kind != TILE and maker is not None and self._is_fill(maker):
            filled = Value(-1, source.value.type, source.value.name)
            scope.ops.append(maker.with_parts(maker.operands, (filled,), ()))
            scope.new[source.id] = filled
            return filled
        dtype = source.value.type
        argument = Value(-1, dataclasses.replace(dtype, shape=source.shape), source.value.name)
        whole = self._whole(source.value)
        if kind == TILE:
            dim = next(d for d, axes in enumerate(source.layout) if self.cut.axis in axes)
            ops, (parts,) = self._traced(lambda x: [self.parts.stacked(x, dim)], (whole,))
            self.before += ops
            self.stacked[source.id] = parts, argument
        else:
            self.consts[source.id] = whole, argument
        scope.new[source.id] = argument
        return argument

    def _is_fill(self, op: Op) -> bool:
        """True for a constant of one movement, such as zeros: computed in place by the loop."""
        rule = self.cut.program.partition.rules[op.id]
        return rule.kind is Kind.MOVEMENT and len(op.results) == 1 and op.is_constant

    def _region_op(self, item: LocalOp, scope: _Scope) -> None:
        operands = tuple([self._read(x, scope) for x in item.ins])
        scopes = [_Scope(outermost=False) for _ in item.regions]
        regions = tuple(map(self._region, item.regions, scopes))
        results = tuple(
            Value(-1, dataclasses.replace(out.value.type, shape=out.shape), out.value.name)
            for out in item.outs
        )
        new = dataclasses.replace(item.op.with_parts(operands, results, regions), key=None)
        if any(inner.uses_part() for inner in scopes):
            new = with_constant(new, scope.part, [inner.part for inner in scopes])
        scope.ops.append(new)
        scope.new.update((out.id, r) for out, r in zip(item.outs, results, strict=True))

    def _region(self, region: LocalRegion, scope: _Scope) -> Region:
        args = tuple(
            Value(-1, dataclasses.replace(a.value.type, shape=a.shape), a.value.name)
            for a in region.args
        )
        scope.new.update((a.id, v) for a, v in zip(region.args, args, strict=True))
        for item in region.steps:
            self._inside(item, scope)
        results = tuple([self._read(x, scope) for x in region.results])
        return Region(args, tuple(scope.ops), results)

    # The loop ----------------------------------------------------------------------------------

    def _loop(self, scope: _Scope) -> list[Op]:
        """Ops of the loop: initial values, the scan, and its results in their types."""
        begin, end = list[Op](), list[Op]()
        carries: list[tuple[Operand, Value, Operand]] = []  # initial value, argument, new value
        leaving: list[LocalValue] = []
        stacks: list[LocalValue] = []
        for local in self.cut.crossing:
            if self.cut.kinds.kind(local) == TILE:
                stacks.append(local)
                continue
            monoid = self.cut.kinds.kind(local)
            made = scope.new[local.id]
            kind = _accumulator(made.type)
            initial = identity(monoid, kind.dtype) if monoid in PENDING else 0
            ops, (x,) = self._traced(lambda k=kind, i=initial: [jnp.full(k.shape, i, k.dtype)], ())
            begin += ops
            total = Value(-1, kind, f"{local.value.name}_total")
            if monoid in PENDING:
                combine = COMBINE[monoid]
                ops, (made,) = self._traced(
                    lambda t, x, c=combine: [c(t, lax.convert_element_type(x, t.dtype))],
                    (total, made),
                )
                scope.ops += ops
            carries.append((x, total, made))
            leaving.append(local)
        stacked = list(self.stacked.values())
        if scope.uses_part():
            ops, (numbers,) = self._traced(lambda: [lax.iota(jnp.int32, self.parts.count)], ())
            begin += ops
            stacked.append((numbers, scope.part))
        finals = [Value(-1, v.type, v.name + "_final") for _, v, _ in carries]
        outs = [
            Value(-1, stacked_type(scope.new[s.id].type, self.parts.count), f"{s.value.name}_parts")
            for s in stacks
        ]
        scan = scan_of(
            [*self.consts.values()],
            [(x, v) for x, v, _ in carries],
            stacked,
            Region(
                (),
                tuple(scope.ops),
                tuple(x for _, _, x in carries) + tuple(scope.new[s.id] for s in stacks),
            ),
            (*finals, *outs),
            length=self.parts.count,
            accumulates=True,
        )
        scan.scope = SCOPE
        for local, final in zip(leaving, finals, strict=True):
            ops, (x,) = self._narrowed(final, local.value.type.dtype)
            end += ops
            self.outside[local.id] = x
        for local, out in zip(stacks, outs, strict=True):
            dim = next(d for d, axes in enumerate(local.layout) if self.cut.axis in axes)
            ops, (x,) = self._traced(lambda x, d=dim: [self.parts.joined(x, d)], (out,))
            end += ops
            self.outside[local.id] = x
        return [*begin, scan, *end]

    def _narrowed(self, x: Value, dtype: Any) -> tuple[list[Op], list[Operand]]:
        if x.type.dtype == dtype:
            return [], [x]
        return self._traced(lambda x: [lax.convert_element_type(x, dtype)], (x,))

    def _traced(self, fun: Any, operands: Sequence[Operand]) -> tuple[list[Op], list[Operand]]:
        """Ops of a function outside of the program's own scopes."""

        def scoped(*args: Any) -> Sequence[Any]:
            with jax.named_scope(SCOPE):
                return fun(*args)  # type: ignore[no-any-return]

        return self.part_writer.traced(scoped, operands)


def _accumulator(kind: TensorType) -> TensorType:
    """Type of a sum over parts: floating-point numbers narrower than 32 bits are summed in f32."""
    dtype = kind.dtype
    if jnp.issubdtype(dtype, jnp.floating) and kind.itemsize < 4:
        return TensorType(kind.shape, np.dtype(np.float32), 4)
    return kind
