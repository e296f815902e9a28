"""Writes layers as scans: stacks of their values before, and single values after."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from partir_search.ir.analysis.reductions import is_zero
from partir_search.ir.core import Module, Op, Operand, Region, Value
from partir_search.ir.rewriter import RegionRewriter
from partir_search.ir.role import Role
from partir_search.passes.fresh_names import FreshNames
from partir_search.passes.remat_copies import RematRewriter
from partir_search.passes.roll.added import added_carries
from partir_search.passes.roll.invariant import with_stacks_outside
from partir_search.passes.roll.layers import Carried, Given, Numbers, Source
from partir_search.passes.roll.plan import RegionPlan, Rolling
from partir_search.rules.registry import role_of
from partir_search.rules.scans import scan_of
from partir_search.rules.stacks import stacked_layers, stacked_type, unstacked_layers
from partir_search.rules.zeros import zeros_of

Key = tuple[Value, ...]  # values of the module, in the order of the layers


class Writer(RematRewriter):
    """Copy of a module with some layers as scans.

    Attributes:
      plans: by region, the layers to roll.
    """

    def __init__(self, module: Module, plans: dict[Region, RegionPlan]) -> None:
        super().__init__(module)
        self._plans = plans
        self._same = {v: w for plan in plans.values() for v, w in plan.same.items()}
        self._fresh = FreshNames(module)
        self._stacks: dict[Key, Value] = {
            op.results: self.value(x)
            for op in module.ops
            if role_of(op) is Role.ROWS_OF_LAYERS
            for _, x in op.inputs()
            if len(op.results) == x.type.shape[0]
        }
        self._zeros: set[Value] = set()
        self._numbers: dict[int, tuple[Value, Any]] = {}  # constants, by `id` of the array

    def constants(self) -> Mapping[int, tuple[Value, Any]]:
        return {**super().constants(), **self._numbers}

    def value(self, old: Value) -> Value:
        return super().value(self._same.get(old, old))

    def op(self, old: Op) -> Op:
        new = RegionRewriter.op(self, old)
        if role_of(new) is Role.BROADCAST and is_zero(new.operands[0], set()):
            self._zeros.update(new.results)
        return new

    def ops(self, old: Region) -> list[Op]:
        plan = self._plans.get(old)
        rollings = plan.rollings if plan else ()
        done: list[Op] = []
        at = 0
        for rolling in rollings:
            assert plan is not None
            done += self._others((*old.ops[at : rolling.start], *rolling.before))
            done += self._scan(rolling, plan)
            at = rolling.stop
        return [*done, *self._others(old.ops[at:])]

    def _others(self, ops: Sequence[Op]) -> list[Op]:
        """Ops outside of layers, after stacks of values known before the loops."""
        done: list[Op] = []
        for op in ops:
            key = tuple(v for _, v in op.inputs())
            stack = self._stacks.get(key) if role_of(op) is Role.LAYERS else None
            if stack is not None:  # made by a scan
                self.new[op.results[0]] = stack
            else:
                done += with_stacks_outside(self.op(op))
        return done

    def _scan(self, rolling: Rolling, plan: RegionPlan) -> list[Op]:
        """Ops in place of layers."""
        layers, near = rolling.layers, rolling.layers.first[0]
        count = len(layers.ops)
        before: list[Op] = []
        inside: dict[int, Value] = {}  # by id of a value of the first layer: in the body
        consts: list[tuple[Operand, Value]] = []
        stacked: list[tuple[Operand, Value]] = []
        arguments: dict[Key, Value] = {}
        for given in layers.given:
            first = given.values[0]
            argument = arguments[given.values] = self._inner(first)
            if given.one:
                consts.append((self.value(first), argument))
            else:
                key = given.values[::-1] if rolling.reverse else given.values
                ops, stack = self._stack(key, near)
                before += ops
                stacked.append((stack, argument))
        numbers: dict[Numbers, Value] = {}
        for source in (s for sources in layers.sources for s in sources if isinstance(s, Numbers)):
            stack = self._constant(source, rolling.reverse)
            number = Value(-1, source.literals[0].type, self._fresh(f"{stack.name}_layer"))
            stacked.append((stack, number))
            numbers[source] = number
        carries = [(c, self._inner(c.initial)) for c in layers.carries]
        carried = dict(carries)
        body: list[Op] = []
        for op, sources in zip(layers.first, layers.sources, strict=True):
            body.append(self._layer_op(op, sources, inside, arguments, carried, numbers))
            inside.update((r.id, v) for r, v in zip(op.results, body[-1].results, strict=True))
        results: list[Operand] = [
            inside[layers.first[c.offset].results[c.result].id]
            if c.younger is None
            else carried[c.younger]
            for c, _ in carries
        ]
        finals: list[Value] = []
        for c, _ in carries:
            last = layers.last(c)
            again = last in finals or self._known(last)
            finals.append(
                Value(-1, last.type, self._fresh(last.name)) if again else self.value(last)
            )
        outs: list[Value] = []
        after: list[Op] = []
        for carry, argument in carries:
            key = layers.entering(carry)
            key = key[::-1] if rolling.reverse else key
            if key in plan.requested:
                results.append(argument)
                outs.append(self._stack_value(key, count))
        for offset, op in enumerate(layers.first):
            for r in range(len(op.results)):
                values = layers.made(offset, r)
                key = values[::-1] if rolling.reverse else values
                single = [v for v in values if v in plan.single and not self._known(v)]
                if key not in plan.requested and not single:
                    continue
                results.append(inside[op.results[r].id])
                outs.append(self._stack_value(key, count))
                if single:
                    after.append(unstacked_layers(outs[-1], [self._apart(v) for v in key], near))
        scan = scan_of(
            consts,
            [(self.value(c.initial), argument) for c, argument in carries],
            stacked,
            Region((), tuple(body), tuple(results)),
            (*finals, *outs),
            length=count,
            reverse=rolling.reverse,
            near=near,
        )
        return [*before, *self._from_zeros(scan), *after]

    def _from_zeros(self, scan: Op) -> list[Op]:
        """A scan whose sums over layers start from zeros, with further first values added after.

        Sums over the batch of other layers may then wait until the end of a loop over microbatches.
        """
        consts, before, after = int(scan.params["num_consts"]), list[Op](), list[Op]()
        operands, results = list(scan.operands), list(scan.results)
        for added in added_carries(scan):
            first, last = operands[consts + added.number], results[added.number]
            if not isinstance(first, Value) or first in self._zeros:
                continue
            zeros = Value(-1, last.type, self._fresh(f"{last.name}_none"))
            total = Value(-1, last.type, self._fresh(f"{last.name}_layers"))
            before.append(zeros_of(zeros, scan))
            operands[consts + added.number], results[added.number] = zeros, total
            after.append(added.addition.with_parts((first, total), (last,), ()))
        if not after:
            return [scan]
        return [*before, scan.with_parts(tuple(operands), tuple(results), scan.regions), *after]

    def _layer_op(
        self,
        op: Op,
        sources: Sequence[Source],
        inside: dict[int, Value],
        arguments: dict[Key, Value],
        carried: dict[Carried, Value],
        numbers: dict[Numbers, Value],
    ) -> Op:
        """An op of the first layer, in the scan's body."""
        read: dict[int, Value] = dict(inside)
        operands: list[Operand] = []
        for x, source in zip(op.operands, sources, strict=True):
            if isinstance(source, Given):
                operands.append(arguments[source.values])
            elif isinstance(source, Carried):
                operands.append(carried[source])
            elif isinstance(source, Numbers):
                operands.append(numbers[source])
            else:
                operands.append(read[x.id] if isinstance(x, Value) else x)
        copied = self.copy(dataclasses.replace(op, operands=()), {}, "_")
        results = tuple(Value(-1, r.type, self._fresh(f"{r.name}_layer")) for r in op.results)
        new = copied.with_parts(tuple(operands), results, copied.regions)
        new.key = None  # a number of the text may have become a value
        return new

    def _constant(self, numbers: Numbers, reverse: bool) -> Value:
        """Constant of a number for each layer, in the order of the layers."""
        literals = numbers.literals[::-1] if reverse else numbers.literals
        kind = literals[0].type
        array = np.array([x.number for x in literals], kind.dtype)
        value = Value(-1, stacked_type(kind, len(literals)), self._fresh("numbers"))
        self._numbers[id(array)] = value, array
        return value

    def _inner(self, value: Value) -> Value:
        return Value(-1, value.type, self._fresh(f"{value.name}_layer"))

    def _known(self, old: Value) -> bool:
        return self._same.get(old, old) in self.new

    def _apart(self, old: Value) -> Value:
        """New value for a layer's value; another one if the layer's value is made already."""
        return Value(-1, old.type, self._fresh(old.name)) if self._known(old) else self.value(old)

    def _stack_value(self, key: Key, count: int) -> Value:
        kind = stacked_type(key[0].type, count)
        found = self._stacks[key] = Value(-1, kind, self._fresh(f"{key[0].name}_layers"))
        return found

    def _stack(self, key: Key, near: Op) -> tuple[list[Op], Value]:
        """Stack of values, and its op unless the stack exists."""
        found = self._stacks.get(key)
        if found is not None:
            return [], found
        stack = self._stack_value(key, len(key))
        return [stacked_layers([self.value(v) for v in key], stack, near)], stack
