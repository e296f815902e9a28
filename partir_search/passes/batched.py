"""Ops on stacks of their operands, by `jax.vmap` of the ops and the reader of jaxprs."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from partir_search.ir.core import Module, Op, Operand, Region, TensorType, Value, walk_regions
from partir_search.ir.data_flow import Emit
from partir_search.ir.from_jaxpr import read_module
from partir_search.ir.interpreter import run_whole
from partir_search.ir.rewriter import RegionRewriter
from partir_search.ir.rule import OpRule
from partir_search.ir.run_region import run_region
from partir_search.rules.registry import RULES
from partir_search.rules.unruled import UNRULED

MARK = "stacked_op_"  # scope of a batched equation: MARK and the id of the op that it comes from
SUFFIX = "_stacked"  # of names of batched values


def batched_module(
    module: Module,
    rules: Sequence[OpRule],
    ops: Sequence[Op],
    inputs: Sequence[tuple[Value, bool]],
    results: Sequence[Value],
    size: int,
) -> Module:
    """Program of some ops, batched over a new leading dim.

    Args:
      module: the program of the ops.
      rules: per op id.
      ops: ops of one region, in order.
      inputs: (value, True if stacked) for each value read from outside of the ops.
      results: values returned, each with the leading dim.
      size: extent of the leading dim.
    """
    values = [v for v, _ in inputs]
    region = Region(tuple(values), tuple(ops), tuple(results))

    def run_op(op: Op, ins: Sequence[Any]) -> Sequence[Any]:
        with jax.named_scope(f"{MARK}{op.id}"):
            return run_whole(rules[op.id], op, ins)

    def emit_of(op: Op) -> Emit:
        def emit(op: Op, blocks: Any, ins: Sequence[Any]) -> Sequence[Any]:
            inner = rules[op.id].emit
            assert inner is not None, op.prim
            with jax.named_scope(f"{MARK}{op.id}"):
                return inner(op, blocks, ins)

        return emit

    def run(*arrays: Any) -> list[Any]:
        given = dict(zip(values, arrays, strict=True))
        outer = {v: a for v, a in given.items() if v.id in module.constants}
        return run_region(region, arrays, outer, run_op, emit_of)

    axes = tuple(0 if stacked else None for _, stacked in inputs)
    shapes = [_abstract(v.type, size if stacked else 0) for v, stacked in inputs]
    jaxpr = jax.make_jaxpr(jax.vmap(run, in_axes=axes, axis_size=size))(*shapes)
    return read_module(
        jaxpr,
        name=module.name,
        arg_paths=[v.name for v in values],
        result_paths=[v.name for v in results],
        ruled=(*RULES, *UNRULED),
    )


def _abstract(kind: TensorType, size: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((*((size,) if size else ()), *kind.shape), kind.dtype)


def captured(module: Module, ops: Sequence[Op]) -> list[Value]:
    """Constants of the program read inside of the regions of some ops."""
    inner = [r for op in ops for region in op.regions for r in walk_regions(region)]
    found = (v for r in inner for op in r.ops for _, v in op.inputs() if v.id in module.constants)
    return list(dict.fromkeys(found))


class Grafter(RegionRewriter):
    """Copies the ops of a batched program into another program.

    Sources, scopes and names of values are those of the ops before batching.
    """

    def __init__(self, ops: Mapping[int, Op], fresh: Callable[[str], str]) -> None:
        """A copy of ops that come from `ops`, by id.

        Args:
          fresh: an unused name of a value, from a stem.
        """
        super().__init__()
        self._origins, self._fresh = ops, fresh
        self._stem = ""

    def graft(self, batched: Module, inputs: Sequence[Value]) -> tuple[list[Op], list[Operand]]:
        """The ops and the results of a batched program on `inputs`."""
        self.new.update(zip(batched.body.args, inputs, strict=True))
        ops = [self.op(op) for op in batched.body.ops]
        return ops, [self.operand(x) for x in batched.body.results]

    def op(self, old: Op) -> Op:
        marks = re.findall(rf"{MARK}(\d+)", old.scope)
        origin = self._origins[int(marks[-1])] if marks else None
        outer, self._stem = self._stem, origin.results[0].name if origin else self._stem
        new = super().op(old)
        self._stem = outer
        if origin is None:
            return new
        params = dict(new.params)
        if "trips" in params and "trips" in origin.params:
            params["trips"] = origin.params["trips"]
        return dataclasses.replace(
            new,
            params=params,
            origin=origin.origin,
            scope=origin.scope,
            backward=origin.backward,
            key=None,
        )

    def value(self, old: Value) -> Value:
        found = self.new.get(old)
        if found is None:
            name = self._fresh(f"{self._stem or old.name}{SUFFIX}")
            found = self.new[old] = Value(-1, old.type, name)
        return found
