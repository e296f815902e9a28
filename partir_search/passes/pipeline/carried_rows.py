"""Rows of layers carried from layer to layer, if ops outside of the layers read or make the rows.

A stage knows the rows of the stage's layers, in the tick of the stage's microbatch. Therefore:

- a stack of layers read by head or exit (a loss of each layer, losses of experts, states of layers
  for a mixture) is an array in the carry, with one row written by each layer;
- rows made by the head, and values made there for all layers (cotangents of such losses) or for
  the exit (of the entry's result, if the head reads the result too), ride in the carry of the
  backward layers;
- rows computed from a microbatch before the layers are one value, read whole by each stage.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from partir_search.ir.core import Op, Operand, Region, TensorType, Value
from partir_search.ir.from_jaxpr import FunctionReader
from partir_search.passes.pipeline.layers import Layers
from partir_search.passes.pipeline.loop_parts import residuals_of, sums_of, totals_of, varying_of
from partir_search.rules.scans import scan_of

Pairs = Sequence[tuple[Layers, Layers]]


@dataclasses.dataclass(frozen=True, slots=True)
class Rows:
    """Positions of a scan's operands and results to move into the carry.

    Attributes:
      leaving: stacks among the stacked results.
      arriving: stacked operands made behind the first layers.
      whole: stacked operands computed from a microbatch before the layers.
      late: operands read by every layer, made behind the first layers.
      passing: values of the head, read behind the backward layers.
    """

    leaving: tuple[int, ...]
    arriving: tuple[int, ...]
    whole: tuple[int, ...]
    late: tuple[int, ...]
    passing: tuple[Value, ...] = ()


NO_ROWS = Rows((), (), (), ())


def with_carried_rows(loop: Op, pairs: Pairs) -> Op:
    """A loop over microbatches with further rows of layers in the carries of the layers.

    Args:
      pairs: forward and backward layers of each stack.
    """
    (body,) = loop.regions
    finder = _Finder(loop, pairs)
    writer = _Writer(body)
    for forward, backward in pairs:
        writer.rows[id(forward.op)] = finder.of_forward(forward, backward)
        writer.rows[id(backward.op)] = finder.of_backward(forward, backward)
    if all(rows == NO_ROWS for rows in writer.rows.values()):
        return loop
    return dataclasses.replace(loop, regions=(writer.region(),))


class _Finder:
    """Finds rows of layers read or made outside of the layers."""

    def __init__(self, loop: Op, pairs: Pairs) -> None:
        (self._body,) = loop.regions
        first = int(loop.params["num_consts"])
        self._carries = self._body.args[first : first + int(loop.params["num_carry"])]
        self._sums = sums_of(self._body, self._carries)
        self._varying = varying_of(self._body, {v.id for v in self._body.args[first:]})
        scans = [layers.op for pair in pairs for layers in pair]
        self._behind = varying_of(self._body, {r.id for op in scans for r in op.results})
        self._single = len(pairs) == 1

    def of_forward(self, forward: Layers, backward: Layers) -> Rows:
        """Rows of forward layers; stacks without a further reader are residuals."""
        return self._rows(forward, self._read(forward.stacks, (backward.op,)), ())

    def of_backward(self, forward: Layers, backward: Layers) -> Rows:
        """Rows of backward layers; stacks added to a total stay."""
        totals = totals_of(self._body, self._carries, {}, backward, self._sums)
        added = {total.stack for total in totals}
        stacks = [x for j, x in enumerate(backward.stacks) if j not in added]
        rows = self._rows(backward, self._read(stacks, ()), residuals_of(forward, backward))
        if not self._single:  # values of earlier segments travel beside several stacks
            return rows
        after = varying_of(self._body, {r.id for r in backward.op.results})
        found = {
            x: None
            for op in self._body.ops
            if op is not backward.op
            and any(r.id in after for r in op.results)
            and not any(r in self._sums for r in op.results)
            for _, x in op.inputs()
            if x.id in self._behind - after and x not in forward.stacks
        }
        return dataclasses.replace(rows, passing=tuple(found))

    def _read(self, stacks: Sequence[Value], known: Sequence[Op]) -> set[Value]:
        """Stacks read by ops besides `known`, or returned."""
        found = {x for op in self._body.ops if op not in known for _, x in op.inputs()}
        found.update(x for x in self._body.results if isinstance(x, Value))
        return found.intersection(x for x in stacks if _is_number(x.type))

    def _rows(self, layers: Layers, leaving: set[Value], residuals: Container[int]) -> Rows:
        stacked = [
            (i, x.id)
            for i, x in enumerate(layers.stacked)
            if isinstance(x, Value) and i not in residuals
        ]
        consts = [(i, x.id) for i, x in enumerate(layers.consts) if isinstance(x, Value)]
        return Rows(
            leaving=tuple([j for j, x in enumerate(layers.stacks) if x in leaving]),
            arriving=tuple([i for i, x in stacked if x in self._behind]),
            whole=tuple([i for i, x in stacked if x in self._varying - self._behind]),
            late=tuple([i for i, x in consts if self._single and x in self._behind]),
        )


def _is_number(kind: TensorType) -> bool:
    return not jnp.issubdtype(kind.dtype, jax.dtypes.extended)


class _Writer:
    """Copy of the body of a loop over microbatches.

    Attributes:
      rows: by id of a scan, the rows to carry.
    """

    def __init__(self, body: Region) -> None:
        self._body = body
        inner = (v for op in body.ops for region in op.regions for v in _values(region))
        self._ids = itertools.count(1 + max(v.id for v in itertools.chain(_values(body), inner)))
        self._new: dict[Operand, Operand] = {}
        self._passed: dict[Operand, Operand] = {}
        self._late: set[Value] = set()  # made behind backward layers with passing values
        self.rows: dict[int, Rows] = {}

    def region(self) -> Region:
        """The new body."""
        ops: list[Op] = []
        for op in self._body.ops:
            late = any(v in self._late for _, v in op.inputs())
            read = tuple([self._operand(x, late) for x in op.operands])
            self._late.update(op.results if late else ())
            moved = op if read == op.operands else op.with_parts(read, op.results, op.regions)
            rows = self.rows.get(id(op))
            ops += [moved] if rows is None else self._scan(moved, rows)
        return Region(self._body.args, tuple(ops), tuple(map(self._operand, self._body.results)))

    def _operand(self, x: Operand, late: bool = False) -> Operand:
        """The new operand; behind the backward layers, values of the head have passed them."""
        if not isinstance(x, Value):
            return x
        return self._passed[x] if late and x in self._passed else self._new.get(x, x)

    def _scan(self, op: Op, rows: Rows) -> list[Op]:
        """A scan with rows in the carry, after the first values."""
        if rows == NO_ROWS:
            return [op]
        layers = Layers(op)
        region, consts, carries = layers.region, len(layers.consts), len(layers.carry)
        stacked = region.args[consts + carries :]
        number = self._value(TensorType((), np.dtype(np.int32), 4), "layer")
        before, (numbers,) = self._traced(lambda: [lax.iota(jnp.int32, layers.count)], (), op)
        inside, after = list[Op](), list[Op]()
        same: dict[Value, Value] = {}  # argument with a row of the layer: the row
        moved: dict[int, Value] = {}  # by position of a stacked operand, the argument with all rows
        for i in (*rows.arriving, *rows.whole):
            moved[i] = self._value(layers.stacked[i].type, f"{stacked[i].name}_all")
            made, (row,) = self._traced(_row, (moved[i], number), op)
            inside += made
            assert isinstance(row, Value)
            same[stacked[i]] = row
        riding: list[tuple[Operand, Value, Operand]] = [  # operand, argument, result
            *((layers.stacked[i], moved[i], moved[i]) for i in rows.arriving),
            *((layers.consts[i], region.args[i], region.args[i]) for i in rows.late),
        ]
        for value in rows.passing:
            argument = self._value(value.type, f"{value.name}_carry")
            riding.append((value, argument, argument))
        finals = [self._value(x.type, f"{a.name}_out") for x, a, _ in riding]
        self._passed.update(
            zip(rows.passing, finals[len(riding) - len(rows.passing) :], strict=True)
        )
        self._late.update(op.results if rows.passing else ())
        for j in rows.leaving:
            stack, x = layers.stacks[j], region.results[carries + j]
            zeros, (none,) = self._traced(functools.partial(_zeros, stack.type), (), op)
            before += zeros
            argument = self._value(stack.type, f"{stack.name}_carry")
            row = same.get(x, x) if isinstance(x, Value) else x
            made, (written,) = self._traced(_written, (argument, number, row), op)
            after += made
            riding.append((none, argument, written))
            finals.append(self._value(stack.type, f"{stack.name}_rows"))
            self._new[stack] = finals[-1]
        own = [i for i in range(consts) if i not in rows.late]
        kept = [i for i in range(len(stacked)) if i not in moved]
        results = [same.get(x, x) if isinstance(x, Value) else x for x in region.results]
        scan = scan_of(
            [
                *((layers.consts[i], region.args[i]) for i in own),
                *((layers.stacked[i], moved[i]) for i in rows.whole),
            ],
            [
                *zip(layers.carry, region.args[consts:], strict=False),
                *((x, argument) for x, argument, _ in riding),
            ],
            [*((layers.stacked[i], stacked[i]) for i in kept), (numbers, number)],
            Region(
                (),
                (*inside, *(_reading(x, same) for x in region.ops), *after),
                (*results[:carries], *(x for _, _, x in riding), *results[carries:]),
            ),
            (*layers.finals, *finals, *layers.stacks),
            length=layers.count,
            reverse=layers.reverse,
            near=op,
        )
        return [*before, dataclasses.replace(scan, id=op.id)]

    def _traced(
        self, fun: Callable[..., Sequence[Any]], operands: Sequence[Operand], near: Op
    ) -> tuple[list[Op], list[Operand]]:
        """Ops of a function, with source, scope and pass of the op `near`."""
        ops, results = FunctionReader(()).read(fun, operands)
        made = [
            dataclasses.replace(op, scope=near.scope, origin=near.origin, backward=near.backward)
            for op in ops
        ]
        for op in made:
            for r in op.results:
                r.id = next(self._ids)
        return made, results

    def _value(self, kind: TensorType, name: str) -> Value:
        return Value(next(self._ids), kind, name)


def _zeros(kind: TensorType) -> list[Any]:
    return [jnp.zeros(kind.shape, kind.dtype)]


def _row(rows: Any, number: Any) -> list[Any]:
    return [lax.dynamic_index_in_dim(rows, number, keepdims=False, allow_negative_indices=False)]


def _written(rows: Any, number: Any, row: Any) -> list[Any]:
    return [lax.dynamic_update_index_in_dim(rows, row, number, 0, allow_negative_indices=False)]


def _reading(op: Op, same: dict[Value, Value]) -> Op:
    if not any(x in same for _, x in op.inputs()):
        return op
    operands = tuple([same.get(x, x) if isinstance(x, Value) else x for x in op.operands])
    return op.with_parts(operands, op.results, op.regions)


def _values(region: Region) -> Iterator[Value]:
    yield from region.args
    for op in region.ops:
        yield from op.results
