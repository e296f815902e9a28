"""Mutable refs read as values: reads become slices, writes become new values.

While a jaxpr is read, the environment maps the variable of a ref to its current value. `regions.py`
handles ops with regions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

from partir_search.ir.core import Literal, Op, Operand
from partir_search.ir.reading.refs.indexing import is_slice, put, take
from partir_search.ir.reading.refs.regions import Env, Reader, is_ref, where


def _alias(reader: Reader, eqn: Any, env: Env, ops: list[Op], prefix: str) -> None:
    env[eqn.outvars[0]] = reader.read(env, eqn.invars[0])


def _free(reader: Reader, eqn: Any, env: Env, ops: list[Op], prefix: str) -> None:
    del env[eqn.invars[0]]


def _empty(reader: Reader, eqn: Any, env: Env, ops: list[Op], prefix: str) -> None:
    """Uninitialised memory, read as zeros."""
    aval = eqn.outvars[0].aval
    made = jax.make_jaxpr(lambda: lax.empty(aval.shape, aval.dtype))
    (env[eqn.outvars[0]],) = _inlined(reader, eqn, made(), [], ops, prefix)


def _get(reader: Reader, eqn: Any, env: Env, ops: list[Op], prefix: str) -> None:
    ref, *flat = eqn.invars
    env[eqn.outvars[0]] = _Place(reader, eqn, flat, env, ops, prefix).take(ref)


def _swap(reader: Reader, eqn: Any, env: Env, ops: list[Op], prefix: str) -> None:
    ref, value, *flat = eqn.invars
    place = _Place(reader, eqn, flat, env, ops, prefix)
    old = place.take(ref)
    env[ref] = place.put(ref, reader.read(env, value), False)
    env[eqn.outvars[0]] = old


def _addupdate(reader: Reader, eqn: Any, env: Env, ops: list[Op], prefix: str) -> None:
    ref, value, *flat = eqn.invars
    place = _Place(reader, eqn, flat, env, ops, prefix)
    env[ref] = place.put(ref, reader.read(env, value), True)


def _broadcast(reader: Reader, eqn: Any, env: Env, ops: list[Op], prefix: str) -> None:
    """Integers of an indexer, broadcast to their common shape."""
    (x,) = eqn.invars
    made = jax.make_jaxpr(lambda i: jax.numpy.broadcast_to(i, eqn.params["shape"]))(_struct(x))
    (env[eqn.outvars[0]],) = _inlined(reader, eqn, made, [reader.read(env, x)], ops, prefix)


def _run_state(reader: Reader, eqn: Any, env: Env, ops: list[Op], prefix: str) -> None:
    """A function of refs initialised with the operands; the results are their final values."""
    if not all(eqn.params["is_initialized"]):
        raise NotImplementedError(f"run_state with uninitialised Refs{where(eqn)}")
    args = [reader.read(env, v) for v in eqn.invars]
    inner, local = reader.run(eqn.params["jaxpr"], args, ops, reader.scope(prefix, eqn))
    for out, atom, var in zip(eqn.outvars, eqn.invars, inner.invars, strict=True):
        env[out] = local[var]
        if is_ref(atom):
            env[atom] = local[var]


READ: Mapping[str, Callable[[Reader, Any, Env, list[Op], str], None]] = {
    "new_ref": _alias,
    "freeze": _alias,
    "accum_grad_in_ref": _alias,
    "empty_ref": _empty,
    "free_ref": _free,
    "get": _get,
    "swap": _swap,
    "addupdate": _addupdate,
    "broadcast_to": _broadcast,
    "run_state": _run_state,
}
"""Readers of the primitives of refs, by name."""


class _Place:
    """Elements of a ref selected by one equation's indexers."""

    def __init__(
        self, reader: Reader, eqn: Any, flat: Sequence[Any], env: Env, ops: list[Op], prefix: str
    ) -> None:
        self.reader, self.eqn, self.flat, self.env, self.ops = reader, eqn, flat, env, ops
        self.prefix = prefix
        self.fixed = {i: int(v.val) for i, v in enumerate(flat) if hasattr(v, "val")}
        counts = [
            None if i in self.fixed else _counts_along(reader.read(env, v), ops)
            for i, v in enumerate(flat)
        ]
        self.counts = eqn.params["tree"].unflatten(counts)
        for indexer in self.counts:
            if not hasattr(indexer, "indices"):
                kind = type(indexer).__name__
                raise NotImplementedError(f"a Ref seen through {kind}{where(eqn)}; index it alone")

    def indexers(self, moving: Sequence[Any]) -> Any:
        left = iter(moving)
        leaves = [self.fixed[i] if i in self.fixed else next(left) for i in range(len(self.flat))]
        return self.eqn.params["tree"].unflatten(leaves)

    def trivial(self) -> bool:
        """True if the indexers select the whole ref."""
        return all(
            is_slice(i) and i.start == 0 and i.size == n and i.stride == 1
            for indexer in self.counts
            for i, n in zip(indexer.indices, indexer.shape, strict=True)
        )

    def take(self, ref: Any) -> Operand:
        if self.trivial():
            return self.env[ref]
        return self._apply(lambda x, at: take(x, at, self.counts), ref, [])

    def put(self, ref: Any, value: Operand, add: bool) -> Operand:
        if self.trivial() and (not add or _is_zeros(self.env[ref], self.ops)):
            return value
        return self._apply(lambda x, at, v: put(x, at, self.counts, v, add), ref, [value])

    def _apply(self, fn: Callable[..., Any], ref: Any, more: list[Operand]) -> Operand:
        moving = [v for i, v in enumerate(self.flat) if i not in self.fixed]

        def indexed(x: Any, moving: list[Any], *rest: Any) -> Any:
            return fn(x, self.indexers(moving), *rest)

        made = jax.make_jaxpr(indexed)(
            _struct(ref),
            [_struct(v) for v in moving],
            *(jax.ShapeDtypeStruct(x.type.shape, x.type.dtype) for x in more),
        )
        args = [self.env[ref], *(self.reader.read(self.env, v) for v in moving), *more]
        (out,) = _inlined(self.reader, self.eqn, made, args, self.ops, self.prefix)
        return out


def _struct(atom: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype)


def _inlined(
    reader: Reader, eqn: Any, jaxpr: Any, args: list[Operand], ops: list[Op], prefix: str
) -> list[Operand]:
    """Results of a jaxpr inlined in place of an equation, with the equation's source on all ops."""
    made: list[Op] = []
    inner, local = reader.run(jaxpr, args, made, reader.scope(prefix, eqn))
    origin = reader.origins(eqn)
    for op in made:
        op.origin = origin
    ops += made
    return [reader.read(local, v) for v in inner.outvars]


def _maker(x: Operand, ops: Sequence[Op]) -> Op | None:
    return next((o for o in reversed(ops) if any(r is x for r in o.results)), None)


def _is_zeros(x: Operand, ops: Sequence[Op]) -> bool:
    """True if a ref was just filled with zeros, as by transposed reads before they add to it."""
    op = None if isinstance(x, Literal) else _maker(x, ops)
    if op is None:
        return isinstance(x, Literal) and x.is_zero()
    filled = op.operands[0] if op.prim == "broadcast_in_dim" else None
    return isinstance(filled, Literal) and filled.is_zero()


def _counts_along(x: Operand, ops: Sequence[Op]) -> int | None:
    """Dim along which an integer array is an iota (constant along all further dims), if any."""
    op = _maker(x, ops)
    if op is None:
        return None
    if op.prim == "iota":
        return int(op.params["dimension"])
    if op.prim == "convert_element_type":
        return _counts_along(op.operands[0], ops)
    if op.prim == "broadcast_in_dim":
        inner = _counts_along(op.operands[0], ops)
        if inner is not None:
            size = op.operands[0].type.shape[inner]
            dim = int(op.params["broadcast_dimensions"][inner])
            return dim if np.equal(op.results[0].type.shape[dim], size) else None
    return None
