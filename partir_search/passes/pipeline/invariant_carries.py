"""Carries of layers changed by no microbatch, as rows of layers computed before the loop.

``key, own = jax.random.split(key)`` in each layer passes a key from layer to layer. Each stage
would receive the key from the stage before in every tick, and random keys have no zeros for stages
without one. A scan of the key alone, before all microbatches, makes a row for each layer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Set

from partir_search.ir.core import Op, Operand, Region, TensorType, Value
from partir_search.ir.role import Role
from partir_search.passes.pipeline.loop_parts import varying_of
from partir_search.rules.control_flow import ACCUMULATES
from partir_search.rules.registry import role_of
from partir_search.rules.stacks import stacked_type


def with_invariant_carries(loop: Op, ids: Iterator[int]) -> tuple[list[Op], Op]:
    """Ops before a loop over microbatches, and the loop with smaller carries of layers.

    Args:
      ids: of new values.
    """
    (body,) = loop.regions
    first = int(loop.params["num_consts"])
    varying = varying_of(body, {v.id for v in body.args[first:]})
    outside = _Outside(loop, ids)
    ops: list[Op] = []
    for op in body.ops:
        if role_of(op) is Role.SCAN and not op.params.get(ACCUMULATES):
            op = _Layers(op, varying).without(outside)
        ops.append(op)
    if not outside.consts:
        return [], loop
    read = {x for op in ops for _, x in op.inputs()}.union(body.results)
    last = {x: outside.const(made) for x, made in outside.finals.items() if x in read}
    ops = [_reading(op, last) for op in ops]
    returned = tuple([last.get(x, x) if isinstance(x, Value) else x for x in body.results])
    args = (*body.args[:first], *outside.consts, *body.args[first:])
    operands = (*loop.operands[:first], *outside.consts.values(), *loop.operands[first:])
    params = {k: v for k, v in loop.params.items() if k != "linear"}
    new = dataclasses.replace(
        loop,
        operands=operands,
        regions=(Region(args, tuple(ops), returned),),
        params={**params, "num_consts": first + len(outside.consts)},
        key=None,
    )
    return outside.ops, new


def _reading(op: Op, last: Mapping[Value, Value]) -> Op:
    if not any(x in last for _, x in op.inputs()):
        return op
    operands = [last.get(x, x) if isinstance(x, Value) else x for x in op.operands]
    return op.with_parts(tuple(operands), op.results, op.regions)


class _Outside:
    """Values of the body of a loop, computed before the loop.

    Attributes:
      finals: values before the loop by carry of layers after the last layer.
      ops: ops before the loop.
      consts: values before the loop by new argument of the body.
    """

    def __init__(self, loop: Op, ids: Iterator[int]) -> None:
        (body,) = loop.regions
        self.ops: list[Op] = []
        self.consts: dict[Value, Value] = {}
        self.finals: dict[Value, Value] = {}
        self._ids = ids
        self._makers = {r: op for op in body.ops for r in op.results}
        self._known: dict[Operand, Operand] = dict(zip(body.args, loop.operands, strict=True))

    def can(self, x: Operand) -> bool:
        """True if a value without a difference between microbatches is made by plain ops."""
        if not isinstance(x, Value) or x in self._known or x in self.finals:
            return True
        maker = self._makers[x]
        return not (maker.regions or maker.effect) and all(self.can(v) for _, v in maker.inputs())

    def operand(self, x: Operand) -> Operand:
        """The value before the loop."""
        if isinstance(x, Value) and x in self.finals:
            return self.finals[x]
        if isinstance(x, Value) and x not in self._known:
            maker = self._makers[x]
            operands = tuple(map(self.operand, maker.operands))
            results = tuple([self.value(r.type, r.name) for r in maker.results])
            self._known.update(zip(maker.results, results, strict=True))
            self.ops.append(maker.with_parts(operands, results, ()))
        return self._known[x] if isinstance(x, Value) else x

    def value(self, kind: TensorType, name: str) -> Value:
        return Value(next(self._ids), kind, f"{name}_before")

    def const(self, x: Value) -> Value:
        """Argument of the body for a value made before the loop."""
        argument = Value(next(self._ids), x.type, x.name)
        self.consts[argument] = x
        return argument


class _Layers:
    """A scan over layers.

    Args:
      varying: ids of values outside with a difference between microbatches.
    """

    def __init__(self, op: Op, varying: Set[int]) -> None:
        self._op, (self._body,) = op, op.regions
        self._consts, self._carries = (int(op.params[k]) for k in ("num_consts", "num_carry"))
        self._varying = {
            arg
            for arg, x in zip(self._body.args, op.operands, strict=True)
            if isinstance(x, Value) and x.id in varying
        }
        self._makers = {r: op for op in self._body.ops for r in op.results}

    def _behind(self, wanted: list[Operand]) -> tuple[set[Op], set[Value]]:
        """Ops behind values of the body, and the arguments read by the ops."""
        ops, args = set[Op](), set[Value]()
        todo = [x for x in wanted if isinstance(x, Value)]
        while todo:
            x = todo.pop()
            maker = self._makers.get(x)
            if maker is None:
                args.add(x)
            elif maker not in ops:
                ops.add(maker)
                todo += [v for _, v in maker.inputs()]
        return ops, args

    def _invariant(self) -> list[int]:
        """Positions of carries without a difference between microbatches."""
        args = self._body.args[self._consts : self._consts + self._carries]
        found = [i for i, x in enumerate(args) if x not in self._varying]
        while True:
            others = {x for i, x in enumerate(args) if i not in found} | self._varying
            kept = [i for i in found if others.isdisjoint(self._behind([self._body.results[i]])[1])]
            if kept == found:
                return kept
            found = kept

    def without(self, outside: _Outside) -> Op:
        """The scan without the carries equal in all microbatches, made by a scan outside."""
        op, body, first = self._op, self._body, self._consts
        gone = self._invariant()
        results = [body.results[i] for i in gone]
        ops, args = self._behind(results)
        carried = [body.args[first + i] for i in gone]
        places = [n for n, x in enumerate(body.args) if x in args and x not in carried]
        consts = [n for n in places if n < first]
        order = [*consts, *(first + i for i in gone), *(n for n in places if n >= first)]
        made = bool(ops) and len(gone) < self._carries and not any(o.effect for o in ops)
        if not made or not all(outside.can(op.operands[n]) for n in order):
            return op
        new: dict[Operand, Value] = {}

        def renamed(x: Value) -> Value:
            if x not in new:
                new[x] = outside.value(x.type, x.name)
            return new[x]

        inner = [renamed(body.args[n]) for n in order]
        chain = []
        for o in body.ops:
            if o in ops:
                operands = tuple([renamed(x) if isinstance(x, Value) else x for x in o.operands])
                chain.append(o.with_parts(operands, tuple(map(renamed, o.results)), o.regions))
        ends = [new.get(x, x) if isinstance(x, Value) else x for x in results]
        count = int(op.params["length"])
        rows = [outside.value(stacked_type(x.type, count), f"{x.name}_rows") for x in carried]
        finals = {r: outside.value(r.type, r.name) for r in (op.results[i] for i in gone)}
        operands = tuple([outside.operand(op.operands[n]) for n in order])
        apart = dataclasses.replace(
            op,
            operands=operands,
            results=(*finals.values(), *rows),
            regions=(Region(tuple(inner), tuple(chain), (*ends, *(new[x] for x in carried))),),
            params=self._params(num_consts=len(consts), num_carry=len(gone)),
            key=None,
        )
        outside.ops.append(apart)
        outside.finals |= finals
        at = [n for n in range(len(body.args)) if n - first not in gone]
        kept = [i for i in range(len(op.results)) if i not in gone]
        region = Region(
            (*(body.args[n] for n in at), *carried),
            body.ops,
            tuple(body.results[i] for i in kept),
        )
        return dataclasses.replace(
            op,
            operands=(*(op.operands[n] for n in at), *map(outside.const, rows)),
            results=tuple(op.results[i] for i in kept),
            regions=(region,),
            params=self._params(num_carry=self._carries - len(gone)),
            key=None,
        )

    def _params(self, **changed: int) -> dict[str, object]:
        params = {k: v for k, v in self._op.params.items() if k != "linear"}
        return {**params, **changed}
