"""A scan with its iterations in parts.

Of n iterations in t parts, iteration i of the new scan computes iterations i, n / t + i, ... of the
old one, by `jax.vmap` of the body. Tiled along the parts, each device computes its own iterations.
Parts of one iteration need no scan.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from partir_search.ir.core import Literal, Module, Op, Operand, Region, TensorType, Value
from partir_search.ir.from_jaxpr import FunctionReader
from partir_search.ir.rewriter import RegionRewriter
from partir_search.ir.rule import OpRule
from partir_search.passes.batched import Grafter, batched_module, captured
from partir_search.passes.fresh_names import FreshNames
from partir_search.passes.parallel_iterations.independent import IndependentScan
from partir_search.rules.construct import (
    NewOp,
    added,
    broadcast,
    renamed,
    reshaped,
    summed,
    transposed,
    zero,
)
from partir_search.rules.scans import scan_of
from partir_search.rules.stacks import stacked_type


@dataclasses.dataclass(eq=False, slots=True)
class Program:
    """A program whose scans are rewritten.

    Attributes:
      module: the program before.
      rules: per op id.
      fresh: an unused name of a value, from a stem.
      constants: (value, array) of new constants, by `id` of the array.
      split: array of parts [n / t, t, ...] by array [n, ...], of the new program.
    """

    module: Module
    rules: Sequence[OpRule]
    fresh: FreshNames
    constants: dict[int, tuple[Value, Any]] = dataclasses.field(default_factory=dict)
    split: dict[Value, Value] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(slots=True)
class _Made:
    """Ops of a batched body, with its results.

    Attributes:
      terms: summands [t, ...] by number of the carry.
      rows: elements [t, ...] of stacked results.
    """

    ops: list[Op]
    terms: dict[int, list[Value]]
    rows: list[Value]


class ScanInParts:
    """Writer of one scan."""

    def __init__(
        self,
        program: Program,
        values: RegionRewriter,
        op: Op,
        scan: IndependentScan,
        count: int,
    ) -> None:
        """A writer of `op` in `count` parts.

        Args:
          values: new values in place of old ones.
        """
        self._program, self._values = program, values
        self._op, self._scan, self._count = op, scan, count
        self._length = int(op.params["length"])
        self._consts, self._carries = int(op.params["num_consts"]), int(op.params["num_carry"])
        self._whole: dict[Value, Value] = {}  # operands by argument of the body
        self._parts: dict[Value, Value] = {}  # the same, split
        self._found: list[Op] = []

    def run(self) -> list[Op]:
        """Ops in place of the scan."""
        self._enter()
        sums, rows = self._once() if self._length == self._count else self._loop()
        self._leave_carries(sums)
        self._leave_rows(rows)
        return self._found

    # Operands ----------------------------------------------------------------------------------

    def _enter(self) -> None:
        for i, argument in enumerate(self._op.regions[0].args):
            number, x = i - self._consts, self._values.operand(self._op.operands[i])
            if number in self._scan.counters:
                self._parts[argument] = self._split(self._numbers(x, self._scan.counters[number]))
            elif number >= self._carries:
                self._parts[argument] = self._split(self._value(x))
            elif number not in self._scan.sums:
                self._whole[argument] = self._value(x)

    def _numbers(self, first: Operand, step: Literal) -> Value:
        """Value of a counter by position in stacked operands."""

        def numbers(x: Any) -> list[Any]:
            counted = jnp.arange(self._length, dtype=step.type.dtype)
            order = counted[::-1] if self._op.params["reverse"] else counted
            return [x + order * step.number]

        ops, (found,) = FunctionReader(()).read(numbers, [self._value(first)])
        near = self._op
        self._found += [
            dataclasses.replace(o, origin=near.origin, scope=near.scope, backward=near.backward)
            for o in ops
        ]
        assert isinstance(found, Value)
        for value in (r for o in ops for r in o.results):
            value.name = self._program.fresh(value.name)
        return found

    def _split(self, x: Value) -> Value:
        """Array [n, ...] in parts, [n / t, t, ...]."""
        found = self._program.split.get(x)
        if found is None and self._length == self._count:
            return x
        if found is None:
            shape = (self._count, self._length // self._count, *x.type.shape[1:])
            blocks = self._put(reshaped(x, shape), f"{x.name}_blocks")
            found = self._put(transposed(blocks, _swapped(blocks)), f"{x.name}_parts")
            self._program.split[x] = found
        return found

    # Iterations --------------------------------------------------------------------------------

    def _once(self) -> tuple[dict[int, Value], list[Value]]:
        """Sums and stacked results, without a scan."""
        made = self._body([*self._whole.values(), *self._parts.values()])
        self._found += made.ops
        return {n: self._sum(n, terms) for n, terms in made.terms.items()}, made.rows

    def _loop(self) -> tuple[dict[int, Value], list[Value]]:
        """Sums and stacked results [n / t, t, ...] of a scan over the iterations of a part."""
        whole = [(x, self._new(v.name, x.type)) for v, x in self._whole.items()]
        parts = [(x, self._new(v.name, _row(x.type))) for v, x in self._parts.items()]
        made = self._body([argument for _, argument in (*whole, *parts)])
        first = {n: self._zeros(self._op.results[n]) for n in made.terms}
        before = {n: self._new(x.name, x.type) for n, x in first.items()}
        last = {n: self._new(x.name, x.type) for n, x in first.items()}
        outside, self._found = self._found, made.ops
        totals = [self._total(before[n], terms) for n, terms in made.terms.items()]
        body = Region((), tuple(self._found), (*totals, *made.rows))
        self._found = outside
        steps = self._length // self._count
        rows = [self._new(v.name, stacked_type(v.type, steps)) for v in made.rows]
        new = scan_of(
            whole,
            [(first[n], before[n]) for n in first],
            parts,
            body,
            [*last.values(), *rows],
            length=steps,
            reverse=self._op.params["reverse"],
            near=self._op,
            unroll=min(int(self._op.params["unroll"]), steps),
        )
        self._found.append(new)
        return {n: self._sum(n, [x]) for n, x in last.items()}, rows

    def _body(self, given: Sequence[Value]) -> _Made:
        """The body on whole and split arguments, over all parts at once."""
        program, (body,) = self._program, self._op.regions
        constants = captured(program.module, [self._op])
        inputs = [(v, False) for v in self._whole] + [(v, True) for v in self._parts]
        terms = [v for values in self._scan.sums.values() for v in values]
        rows = [x for x in body.results[self._carries :] if isinstance(x, Value)]
        batched = batched_module(
            program.module,
            program.rules,
            [op for op in body.ops if op not in self._scan.additions],
            [*inputs, *((v, False) for v in constants)],
            [*terms, *rows],
            self._count,
        )
        grafter = Grafter({op.id: op for op in program.module.ops}, program.fresh)
        for at, array in batched.constants.items():
            program.constants[id(array)] = grafter.value(batched.values[at]), array
        visible = [self._values.value(v) for v in constants]
        ops, results = grafter.graft(batched, [*given, *visible])
        made = iter([x for x in results if isinstance(x, Value)])
        summands = {n: list(itertools.islice(made, len(v))) for n, v in self._scan.sums.items()}
        return _Made(ops, summands, list(made))

    # Results -----------------------------------------------------------------------------------

    def _leave_carries(self, sums: dict[int, Value]) -> None:
        for number, result in enumerate(self._op.results[: self._carries]):
            if number in sums:
                self._values.new[result] = sums[number]
            elif number in self._scan.kept:
                self._values.new[result] = self._value(self._first(number))
            else:
                step = self._scan.counters[number]
                counted = np.asarray(step.number * self._length).astype(step.type.dtype)  # wraps
                last = added(self._value(self._first(number)), Literal(counted[()], step.type))
                self._put(last, self._values.value(result))

    def _leave_rows(self, rows: Sequence[Value]) -> None:
        for result, row in zip(self._op.results[self._carries :], rows, strict=True):
            if self._length == self._count:
                self._values.new[result] = row
                continue
            blocks = self._put(transposed(row, _swapped(row)), f"{result.name}_blocks")
            joined = self._put(reshaped(blocks, result.type.shape), self._values.value(result))
            self._program.split[joined] = row

    # Values and ops ----------------------------------------------------------------------------

    def _first(self, number: int) -> Operand:
        """A carry before the first iteration."""
        return self._values.operand(self._op.operands[self._consts + number])

    def _new(self, stem: str, kind: TensorType) -> Value:
        return Value(-1, kind, self._program.fresh(stem))

    def _put(self, new: NewOp, result: Value | str) -> Value:
        """Appends an op; its result, a new value if the stem of a name is given."""
        if isinstance(result, str):
            result = self._new(result, new.type)
        self._found.append(new.at(self._op, result))
        return result

    def _value(self, x: Operand) -> Value:
        return x if isinstance(x, Value) else self._put(renamed(x), "first")

    def _zeros(self, x: Value) -> Value:
        """Zeros [t, ...] for a sum `x`."""
        kind = stacked_type(x.type, self._count)
        return self._put(broadcast(zero(kind), kind.shape, ()), x.name)

    def _total(self, first: Value, terms: Sequence[Value]) -> Value:
        for term in terms:
            first = self._put(added(first, term), "total")
        return first

    def _sum(self, number: int, terms: Sequence[Value]) -> Value:
        """A carry after all iterations: its first value, and all parts of `terms`."""
        total = self._put(summed(self._total(terms[0], terms[1:]), 0), "sum")
        return self._put(added(self._value(self._first(number)), total), "total")


def _swapped(x: Value) -> tuple[int, ...]:
    """Order of the dims of an array with its first two dims swapped."""
    return (1, 0, *range(2, len(x.type.shape)))


def _row(kind: TensorType) -> TensorType:
    return dataclasses.replace(kind, shape=kind.shape[1:])
