"""Sums over layers as rows of layers: gradients of values read by all layers.

The backward layers of a microbatch add to a carry. Passed from stage to stage, the carry would need
a permute in every tick, and a reduction over data parallelism in every layer. As a row for each
layer, summed after the scan, a stage adds up the rows of the stage's layers, and the stages are
summed once, after all ticks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

from jax import lax

from partir_search.ir.core import Module, Op, Operand, Region, Value
from partir_search.ir.from_jaxpr import FunctionReader
from partir_search.ir.role import Role
from partir_search.passes.roll.added import Added, added_carries
from partir_search.rules.control_flow import ACCUMULATES
from partir_search.rules.registry import role_of
from partir_search.rules.stacks import stacked_type


def with_summed_rows(module: Module, loop: Op, ids: Iterator[int]) -> Op:
    """A loop over microbatches whose layers stack the values added to totals of the loop.

    Args:
      ids: of new values, beyond the module's.
    """
    (body,) = loop.regions
    finder = _Finder(module, loop)
    ops: list[Op] = []
    for op in body.ops:
        if role_of(op) is Role.SCAN and not op.params.get(ACCUMULATES):
            ops += _stacked(op, finder.summed(op), ids)
        else:
            ops.append(op)
    return dataclasses.replace(loop, regions=(Region(body.args, tuple(ops), body.results),))


class _Finder:
    """Finds carries of layers with zeros at first, ending in a total of the loop."""

    def __init__(self, module: Module, loop: Op) -> None:
        (body,) = loop.regions
        first = int(loop.params["num_consts"])
        self._outer = dict(zip(body.args, loop.operands, strict=True))
        self._totals = body.args[first : first + int(loop.params["num_carry"])]
        self._results = body.results
        self._makers = {r: op for op in (*module.body.ops, *body.ops) for r in op.results}
        self._readers: dict[Value, list[Op]] = {}
        for op in body.ops:
            for _, x in op.inputs():
                self._readers.setdefault(x, []).append(op)

    def summed(self, scan: Op) -> list[Added]:
        """The carries of a scan."""
        consts = int(scan.params["num_consts"])
        return [
            added
            for added in added_carries(scan)
            if self._is_zero(scan.operands[consts + added.number])
            and self._ends_in_total(scan.results[added.number])
        ]

    def _is_zero(self, x: Operand) -> bool:
        if not isinstance(x, Value):
            return x.is_zero()
        if x in self._outer:
            return self._is_zero(self._outer[x])
        maker = self._makers.get(x)
        return (
            maker is not None
            and role_of(maker) is Role.BROADCAST
            and self._is_zero(maker.operands[0])
        )

    def _ends_in_total(self, x: Value) -> bool:
        """True if the only reader adds a value, or a cast of the value, to a total."""
        readers = self._readers.get(x, ())
        if x in self._results or len(readers) != 1:
            return False
        (reader,) = readers
        if role_of(reader) is Role.CAST:
            return self._ends_in_total(reader.results[0])
        return role_of(reader) is Role.ADDITION and any(
            total in reader.operands and new is reader.results[0]
            for total, new in zip(self._totals, self._results, strict=False)
        )


def _stacked(scan: Op, summed: list[Added], ids: Iterator[int]) -> list[Op]:
    """A scan with rows in place of some carries, and the sums of the rows."""
    if not summed:
        return [scan]
    (body,) = scan.regions
    consts, carries = int(scan.params["num_consts"]), int(scan.params["num_carry"])
    gone = {added.number for added in summed}
    ops, rows = body.ops, list[Operand]()
    stacks, sums = list[Value](), list[Op]()
    for added in summed:
        argument, final = body.args[consts + added.number], scan.results[added.number]
        ops, row = _without(ops, argument, body.results[added.number])
        kind = final.type
        count = int(scan.params["length"])
        stack = Value(next(ids), stacked_type(kind, count), f"{final.name}_rows")
        rows.append(row)
        stacks.append(stack)
        (op,), _ = FunctionReader(()).read(lambda x: [lax.reduce_sum(x, (0,))], (stack,))
        sums.append(
            dataclasses.replace(
                op, results=(final,), scope=scan.scope, origin=scan.origin, backward=scan.backward
            )
        )
    kept = [i for i in range(carries) if i not in gone]
    operands = [x for i, x in enumerate(scan.operands) if i - consts not in gone]
    args = [x for i, x in enumerate(body.args) if i - consts not in gone]
    results = [*(body.results[i] for i in kept), *body.results[carries:], *rows]
    outs = [*(scan.results[i] for i in kept), *scan.results[carries:], *stacks]
    params = {k: v for k, v in scan.params.items() if k != "linear"}
    new = dataclasses.replace(
        scan,
        operands=tuple(operands),
        results=tuple(outs),
        regions=(Region(tuple(args), ops, tuple(results)),),
        params={**params, "num_carry": len(kept)},
        key=None,
    )
    return [new, *sums]


def _without(
    ops: tuple[Op, ...], argument: Value, result: Operand
) -> tuple[tuple[Op, ...], Operand]:
    """Ops without the addition to an argument, and the value added to the argument in all."""
    addition = next(op for op in ops if argument in op.operands)
    first = next(x for x in addition.operands if x is not argument)
    total = addition.results[0]
    renamed: Mapping[Operand, Operand] = {total: first}
    kept = [_reading(op, renamed) for op in ops if op is not addition]
    return tuple(kept), first if result is total else result


def _reading(op: Op, renamed: Mapping[Operand, Operand]) -> Op:
    if not any(x in renamed for _, x in op.inputs()):
        return op
    operands = [renamed.get(x, x) if isinstance(x, Value) else x for x in op.operands]
    return op.with_parts(tuple(operands), op.results, op.regions)
