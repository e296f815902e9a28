"""Casts of gradients to narrower types, behind loops over layers and recomputed regions.

A layer with a bf16 weight used in f32 casts the weight's gradient back. A sum over parts of a batch
is finished before the cast, behind all parts: the loop over layers has to return the gradient in
f32. Moves and additions between the cast and the result are done in f32, too, and so is a layer
that casts f32 weights to bf16, and so casts the gradient to bf16 and back.
"""

from __future__ import annotations

import collections
import dataclasses

import jax.numpy as jnp

from partir_search.ir.analysis.reductions import is_zero
from partir_search.ir.core import Module, Op, Operand, Region, Value
from partir_search.ir.role import Role
from partir_search.passes.fresh_names import FreshNames
from partir_search.passes.rewriter import Rewriter
from partir_search.rules.construct import NewOp, padded, zero
from partir_search.rules.registry import role_of

_PASSED = frozenset(
    {
        *(Role.ADDITION, Role.BROADCAST, Role.CAST),
        *(Role.RESHAPE, Role.SQUEEZE, Role.TRANSPOSITION),
    }
)


def with_late_casts(module: Module) -> Module:
    """Module with final narrowing casts of regions behind the regions; the same one without any."""
    rewriter = _Rewriter(module)
    new = rewriter.run()
    return new if rewriter.found else module


class _Rewriter(Rewriter):
    """Rewriter of all regions of a module, inner ones first.

    Attributes:
      found: True after the first cast.
    """

    def __init__(self, module: Module) -> None:
        super().__init__(module)
        self.found = False
        self._names = FreshNames(module)

    def ops(self, old: Region) -> list[Op]:
        done: list[Op] = []
        for op in old.ops:
            new = self.op(op)
            role = role_of(new)
            if new.backward and role in (Role.SCAN, Role.CHECKPOINT):
                first = int(new.params["num_carry"]) if role is Role.SCAN else 0
                done += self._late(new, first)
            else:
                done.append(new)
        return done

    def _late(self, op: Op, first: int) -> list[Op]:
        """An op with wide results from number `first` on, and casts of the results."""
        wide = _Wide(op.regions[0], self._names)
        results, outer, casts = list(wide.region.results), list(op.results), list[Op]()
        for at in range(first, len(results)):
            x = results[at]
            cast = wide.cast_behind(x) if isinstance(x, Value) else None
            if cast is None or not isinstance(x, Value):
                continue
            results[at] = made = wide.widened(x, cast)
            kind = dataclasses.replace(outer[at].type, dtype=made.type.dtype)
            kind = dataclasses.replace(kind, itemsize=made.type.itemsize)
            value = Value(-1, kind, self._names(f"{outer[at].name}_wide"))
            casts += self._casts(value, cast, outer[at])
            outer[at] = value
        if not casts:
            return [op]
        self.found = True
        region = Region(wide.region.args, wide.ops(), tuple(results))
        return [dataclasses.replace(op, results=tuple(outer), regions=(region,), key=None), *casts]

    def _casts(self, value: Value, cast: Op, result: Value) -> list[Op]:
        """A narrowing cast of a wide value, and one back if the result was wide before."""
        narrow, kind = cast.results[0].type, result.type
        if kind.dtype == narrow.dtype:
            return [NewOp(cast.prim, cast.handle, (value,), cast.params, kind).at(cast, result)]
        kind = dataclasses.replace(kind, dtype=narrow.dtype, itemsize=narrow.itemsize)
        rounded = Value(-1, kind, self._names(f"{result.name}_narrow"))
        params = {**cast.params, "new_dtype": result.type.dtype}
        back = NewOp(cast.prim, cast.handle, (rounded,), params, result.type)
        first = NewOp(cast.prim, cast.handle, (value,), cast.params, kind)
        return [first.at(cast, rounded), back.at(cast, result)]


class _Wide:
    """Ops of a region with results in the type before a cast.

    Attributes:
      region: the region.
    """

    def __init__(self, region: Region, names: FreshNames) -> None:
        self.region, self._names = region, names
        read = [*(x for op in region.ops for _, x in op.inputs()), *region.results]
        self._readers = collections.Counter(x for x in read if isinstance(x, Value))
        self._makers = {r: op for op in region.ops for r in op.results}
        self._instead: dict[Op, list[Op]] = {}
        self._first: list[Op] = []

    def cast_behind(self, x: Operand) -> Op | None:
        """A narrowing cast of floats, with moves, additions and casts back alone behind the cast.

        Additions of rounded values in a wide type have rounded operands alone.
        """
        op = self._maker(x)
        if op is None:
            return None
        if role_of(op) is Role.CAST and _narrows(op):
            return op
        if role_of(op) is Role.CAST and not _widens(op):
            return None
        found = [self.cast_behind(operand) for operand in _summands(op)]
        cast = next((cast for cast in found if cast is not None), None)
        wide = cast is not None and cast.results[0].type.dtype != op.results[0].type.dtype
        return None if wide and None in found else cast

    def _maker(self, x: Operand) -> Op | None:
        """Maker of a value with one reader, if a cast, move or addition."""
        op = self._makers.get(x) if isinstance(x, Value) and self._readers[x] == 1 else None
        if op is None or not all(isinstance(o, Value) for o in _summands(op)):
            return None
        return op if role_of(op) in _PASSED or _pads_by_zeros(op) else None

    def widened(self, x: Value, cast: Op) -> Value:
        """`x` in the type before a cast."""
        kind, op = cast.operands[0].type, self._maker(x)
        if op is not None and role_of(op) is Role.CAST:
            if op.operands[0].type.dtype == kind.dtype:
                self._instead[op] = []
                return op.inputs()[0][1]
            if _widens(op) and self.cast_behind(x) is not None:
                self._instead[op] = []
                return self.widened(op.inputs()[0][1], cast)
        to = dataclasses.replace(x.type, dtype=kind.dtype, itemsize=kind.itemsize)
        value = Value(-1, to, self._names(f"{x.name}_wide"))
        if op is not None and role_of(op) is Role.PADDING:
            inner = self.widened(op.inputs()[0][1], cast)
            new = padded(inner, zero(to), op.params["padding_config"]).at(op, value)
            self._instead[op] = [new]
            return value
        if op is not None and role_of(op) is not Role.CAST:
            operands = tuple([self.widened(o, cast) for _, o in op.inputs()])
            new = dataclasses.replace(op, operands=operands, results=(value,), key=None)
            self._instead[op] = [new]
            return value
        params = {**cast.params, "new_dtype": kind.dtype}
        up = NewOp(cast.prim, cast.handle, (x,), params, to).at(cast, value)
        maker = self._makers.get(x)
        if maker is None:
            self._first.append(up)
        else:
            self._instead.setdefault(maker, [maker]).append(up)
        return value

    def ops(self) -> tuple[Op, ...]:
        """All ops, in order."""
        instead = (new for op in self.region.ops for new in self._instead.get(op, [op]))
        return (*self._first, *instead)


def _summands(op: Op) -> tuple[Operand, ...]:
    """Operands with elements of the result; of a pad without the number around them."""
    return op.operands[:1] if role_of(op) is Role.PADDING else op.operands


def _pads_by_zeros(op: Op) -> bool:
    return role_of(op) is Role.PADDING and is_zero(op.operands[1], set())


def _narrows(cast: Op) -> bool:
    return _change_of_bytes(cast) < 0


def _widens(cast: Op) -> bool:
    return _change_of_bytes(cast) > 0


def _change_of_bytes(cast: Op) -> int:
    """Increase of the item size, in bytes, by a cast from float to float; 0 for other casts."""
    before, after = cast.operands[0].type, cast.results[0].type
    floats = all(jnp.issubdtype(kind.dtype, jnp.floating) for kind in (before, after))
    return after.itemsize - before.itemsize if floats else 0
