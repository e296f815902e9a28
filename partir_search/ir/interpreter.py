"""Interpreter of partitions: runs loops literally, slice by slice, on whole arrays. The oracle.

Each op runs once per tile on slices of its operands; tiles of results are concatenated, partial
results are combined. No collective, device or layout is involved: the results test whether rules
and loops have the meaning of the program.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from partir_search.ir.boundaries import taken
from partir_search.ir.core import Module, Op, Value
from partir_search.ir.data_flow import Emit
from partir_search.ir.local_op import run_local
from partir_search.ir.partition import Partition
from partir_search.ir.rule import OpRule
from partir_search.ir.run_region import OnValue, RunOp, run_region


@dataclasses.dataclass(frozen=True, slots=True)
class _Iteration:
    """`LocalContext` of one iteration of an op's loops.

    Attributes:
      tile: index of the tile by factor.
      count: number of tiles by factor.
    """

    tile: Mapping[int, int]
    count: Mapping[int, int]
    mesh: None = None

    def tile_index(self, factor: int) -> Any:
        return jnp.int32(self.tile.get(factor, 0))

    def is_first(self, factor: int) -> Any:
        return self.tile_index(factor) == 0

    def tiles(self, factor: int) -> int:
        return self.count.get(factor, 1)

    def once(self, run: Callable[[], Sequence[Any]]) -> Sequence[Any]:
        return run()

    def last_effects(self) -> Sequence[Any]:
        return ()  # one device

    def ran(self, token: Any) -> None:
        pass

    def shardings(self) -> Sequence[Any]:
        return ()


def evaluate(partition: Partition, args: Sequence[Any]) -> list[Any]:
    """Results of a partition's module on flat `args`, computed loop by loop."""
    rules = partition.rules
    return interpret(partition.module, rules, args, lambda op, x: _loops(partition, op, x))


def run_whole(rule: OpRule, op: Op, ins: Sequence[Any]) -> Sequence[Any]:
    """Results of an op without loops on whole arrays."""
    return run_local(_Iteration({}, {}), rule, op, list(ins))


def interpret(
    module: Module,
    rules: Sequence[OpRule],
    args: Sequence[Any],
    run_op: RunOp,
    on_value: OnValue = lambda value, x: x,
) -> list[Any]:
    """Results of the module on flat `args`.

    Args:
      rules: rule per op id.
      run_op: runs an op without regions.
      on_value: called on every argument and result of an op, inside of regions too; returns the
        array to continue with.
    """
    constants = {module.values[i]: jnp.asarray(a) for i, a in module.constants.items()}

    def emit_of(op: Op) -> Emit:
        emit = rules[op.id].emit
        assert emit is not None, op.prim
        return emit

    return run_region(module.body, args, constants, run_op, emit_of, on_value)


def _loops(partition: Partition, op: Op, ins: Sequence[Any]) -> list[Any]:
    rule = partition.rules[op.id]
    count = {f: partition.tiles_of(op, f) for f in range(len(rule.sizes))}
    count = {f: n for f, n in count.items() if n > 1}
    pieces: dict[tuple[int, ...], Sequence[Any]] = {}
    for index in itertools.product(*(range(n) for n in count.values())):
        tile = dict(zip(count, index, strict=True))
        sliced = [
            _slice(x, rule, i, tile, count) if isinstance(operand, Value) else x
            for i, (x, operand) in enumerate(zip(ins, op.operands, strict=True))
        ]
        pieces[index] = run_local(_Iteration(tile, count), rule, op, sliced)
    for position in reversed(range(len(count))):
        f = list(count)[position]
        merged: dict[tuple[int, ...], Sequence[Any]] = {}
        for index in {i[:position] for i in pieces}:
            slices = [pieces[(*index, k)] for k in range(count[f])]
            merged[index] = [
                _join([p[r] for p in slices], rule.dim_of(dims, f), rule.reducers[f])
                for r, dims in enumerate(rule.results)
            ]
        pieces = merged
    return list(pieces[()])


def _slice(
    x: Any, rule: OpRule, operand: int, tile: Mapping[int, int], count: Mapping[int, int]
) -> Any:
    """Slice of an operand read by one iteration."""
    dims = rule.operands[operand]
    for d in range(len(dims)):
        for f in rule.factors_on(dims, d):
            if f not in tile:
                continue
            if reads := rule.window_on(operand, d):
                start, size = reads.tile_window(tile[f], rule.sizes[f] // count[f])
                x = taken(x, d, start, size, reads.beyond)
            else:
                size = x.shape[d] // count[f]
                x = lax.slice_in_dim(x, tile[f] * size, (tile[f] + 1) * size, axis=d)
    return x


def _join(slices: Sequence[Any], dim: int, monoid: str) -> Any:
    if dim >= 0:
        return jnp.concatenate(slices, axis=dim)
    combine = {
        "sum": lax.add,
        "max": lax.max,
        "min": lax.min,
        "and": lax.bitwise_and,
        "or": lax.bitwise_or,
    }
    total = slices[0]
    for piece in slices[1:]:
        total = combine[monoid](total, piece)
    return total
