"""Mutable refs read as values: reads take parts, writes make new values, loops carry them.

While a jaxpr is read, the environment maps the variable of a ref to the value that it holds.
Ops whose regions write refs take the refs' values as further operands (carries of loops) and give
the new ones as further results, so that the program equals the one written with a carry. What is
only read stays a constant of the loop.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import jax
import numpy as np
from jax import lax

from partir_search.ir.core import Literal, Op, Operand, Region, Value
from partir_search.ir.names import source_line
from partir_search.ir.ref_index import is_slice, put, take

Env = dict[Any, Operand]

_EFFECTS = frozenset({"ReadEffect", "WriteEffect", "AccumEffect", "InternalMutableArrayEffect"})


class Reader(Protocol):
    """The part of the jaxpr reader that is needed here."""

    origins: dict[Any, Any]

    def read(self, env: Env, atom: Any) -> Operand: ...

    def value(self, aval: Any, name: str) -> Value: ...

    def scope(self, prefix: str, eqn: Any) -> str: ...

    def run(
        self, jaxpr: Any, args: Sequence[Operand], ops: list[Op], prefix: str
    ) -> tuple[Any, Env]: ...


def has_effect(eqn: Any) -> bool:
    """Whether an equation does something besides making results and using refs."""
    return any(type(e).__name__ not in _EFFECTS for e in eqn.effects)


def is_ref(atom: Any) -> bool:
    return isinstance(atom.aval, jax.ref.AbstractRef)


def written(eqn: Any) -> tuple[Any, ...]:
    """Variables of the refs that an equation with effects writes, in the order of its operands."""
    touched = {id(getattr(e, "input", None)) for e in eqn.effects if _writes(e)}
    return tuple(dict.fromkeys(v for v in eqn.invars if id(v) in touched))


def _writes(effect: Any) -> bool:
    return type(effect).__name__ in ("WriteEffect", "AccumEffect")


def write_back(atoms: Sequence[Any], env: Env, inner: Any, local: Env) -> None:
    """After a call was inlined: the refs that it was given hold what it left in them."""
    for var, atom in zip(inner.invars, atoms, strict=True):
        if is_ref(atom):
            env[atom] = local[var]


# Ops with regions -------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class Carried:
    """An equation whose regions write refs, as one that takes and gives their values.

    Attributes:
      invars / outvars: of the op; a ref's variable among `outvars` stands for its new value.
    """

    regions: tuple[Region, ...]
    invars: tuple[Any, ...]
    outvars: tuple[Any, ...]
    params: Mapping[str, Any]


def carried(reader: Reader, eqn: Any, params: Mapping[str, Any], stem: str) -> Carried:
    """The equation with what its regions write among its operands and results."""
    make = _CARRIED.get(eqn.primitive.name)
    if make is None:
        raise NotImplementedError(
            f"{eqn.primitive.name} writes to a Ref{_where(eqn)}, which is not supported: let it"
            " return the new value, and write that to the Ref"
        )
    return make(reader, eqn, params, stem)


def _where(eqn: Any) -> str:
    line = source_line(eqn.source_info)
    return f" at {line}" if line else ""


def _args(reader: Reader, jaxpr: Any, stem: str, but: Sequence[int] = ()) -> list[Any]:
    invars = getattr(jaxpr, "jaxpr", jaxpr).invars
    return [
        None if i in but else reader.value(v.aval, f"{stem}.arg{i}") for i, v in enumerate(invars)
    ]


def _scan(reader: Reader, eqn: Any, params: Mapping[str, Any], stem: str) -> Carried:
    consts, carries = params["num_consts"], params["num_carry"]
    refs = written(eqn)
    at = [i for i, v in enumerate(eqn.invars) if v in refs]
    held = [i for i in at if i < consts]
    scanned = [i for i in at if i >= consts + carries]
    args, ops = _args(reader, eqn.params["jaxpr"], stem), list[Op]()
    inner, local = reader.run(eqn.params["jaxpr"], args, ops, "")
    outs = [reader.read(local, v) for v in inner.outvars]
    final = {i: local[inner.invars[i]] for i in at}
    order = [i for i in range(consts) if i not in held]
    order += [*range(consts, consts + carries), *held, *range(consts + carries, len(args))]
    results = [*outs[:carries], *(final[i] for i in held), *outs[carries:]]
    results += [final[i] for i in scanned]
    made = [*eqn.outvars[:carries], *(eqn.invars[i] for i in held), *eqn.outvars[carries:]]
    made += [eqn.invars[i] for i in scanned]
    counts = {"num_consts": consts - len(held), "num_carry": carries + len(held)}
    return Carried(
        (Region(tuple(args[i] for i in order), tuple(ops), tuple(results)),),
        tuple(eqn.invars[i] for i in order),
        tuple(made),
        {**params, **counts},
    )


def _while(reader: Reader, eqn: Any, params: Mapping[str, Any], stem: str) -> Carried:
    """As jax has it, what the condition writes is kept only where the body runs after it."""
    tested, bodied = params["cond_nconsts"], params["body_nconsts"]
    refs = written(eqn)
    consts = [eqn.invars[:tested], eqn.invars[tested : tested + bodied]]
    kept = [[i for i, v in enumerate(part) if v not in refs] for part in consts]
    jaxprs = eqn.params["cond_jaxpr"], eqn.params["body_jaxpr"]

    def run(which: int, args: list[Any], held: dict[Any, Operand], ops: list[Op]) -> Any:
        full = [held.get(v, a) for v, a in zip(consts[which], args, strict=False)]
        inner, local = reader.run(jaxprs[which], [*full, *args[len(full) :]], ops, "")
        after = dict(held)
        for v, var in zip(consts[which], inner.invars, strict=False):
            if v in held:
                after[v] = local[var]
        return [reader.read(local, v) for v in inner.outvars], after

    def region(which: int, first: int | None) -> Region:
        """A region; `first` is one to run before it, for what it writes."""
        ops: list[Op] = []
        own = [reader.value(v.aval, f"{stem}.ref") for v in refs]
        held: dict[Any, Operand] = dict(zip(refs, own, strict=True))
        skip = [i for i in range(len(consts[which])) if i not in kept[which]]
        args = _args(reader, jaxprs[which], stem, skip)
        carry = args[len(consts[which]) :]
        taken = [args[i] for i in kept[which]]
        if first is not None:
            skip = [i for i in range(len(args)) if i not in kept[first]]
            before = _args(reader, jaxprs[first], stem, [*skip, *range(len(consts[first]), 10**6)])
            before[len(consts[first]) :] = carry
            taken = [before[i] for i in kept[first]] + taken
            _, held = run(first, before, held, ops)
        outs, held = run(which, args, held, ops)
        results = (*outs, *(held[v] for v in refs)) if which else tuple(outs)
        return Region((*taken, *carry, *own), tuple(ops), results)

    tests = any(v in refs for v in consts[0])
    writes = tests and _writes_any(getattr(jaxprs[0], "jaxpr", jaxprs[0]))
    regions = region(0, None), region(1, 0 if writes else None)
    ins = [[part[i] for i in keep] for part, keep in zip(consts, kept, strict=True)]
    body = [*ins[0], *ins[1]] if writes else ins[1]
    return Carried(
        regions,
        (*ins[0], *body, *eqn.invars[tested + bodied :], *refs),
        (*eqn.outvars, *refs),
        {**params, "cond_nconsts": len(ins[0]), "body_nconsts": len(body)},
    )


def _writes_any(jaxpr: Any) -> bool:
    return any(_writes(e) for eqn in jaxpr.eqns for e in eqn.effects)


def _straight(reader: Reader, eqn: Any, params: Mapping[str, Any], stem: str) -> Carried:
    """Branches of a cond, and what runs once: operands stay, new values of refs are results."""
    refs = written(eqn)
    key = "branches" if eqn.primitive.name == "cond" else "jaxpr"
    jaxprs = eqn.params[key] if key == "branches" else (eqn.params[key],)
    operands = eqn.invars[1:] if key == "branches" else eqn.invars
    regions = []
    for jaxpr in jaxprs:
        ops: list[Op] = []
        args = _args(reader, jaxpr, stem)
        inner, local = reader.run(jaxpr, args, ops, "")
        final = {v: local[var] for v, var in zip(operands, inner.invars, strict=True) if is_ref(v)}
        outs = [reader.read(local, v) for v in inner.outvars]
        regions.append(Region(tuple(args), tuple(ops), (*outs, *(final[v] for v in refs))))
    return Carried(tuple(regions), tuple(eqn.invars), (*eqn.outvars, *refs), params)


_CARRIED: Mapping[str, Callable[[Reader, Any, Mapping[str, Any], str], Carried]] = {
    "scan": _scan,
    "while": _while,
    "cond": _straight,
    "remat2": _straight,
    "checkpoint": _straight,
    "shard_map": _straight,
}


# The primitives themselves ----------------------------------------------------------------------


def _alias(reader: Reader, eqn: Any, env: Env, ops: list[Op], prefix: str) -> None:
    env[eqn.outvars[0]] = reader.read(env, eqn.invars[0])


def _free(reader: Reader, eqn: Any, env: Env, ops: list[Op], prefix: str) -> None:
    del env[eqn.invars[0]]


def _empty(reader: Reader, eqn: Any, env: Env, ops: list[Op], prefix: str) -> None:
    """Memory of no defined contents: zeros."""
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
    """Integers of an indexer, brought to their common shape."""
    (x,) = eqn.invars
    made = jax.make_jaxpr(lambda i: jax.numpy.broadcast_to(i, eqn.params["shape"]))(_struct(x))
    (env[eqn.outvars[0]],) = _inlined(reader, eqn, made, [reader.read(env, x)], ops, prefix)


def _run_state(reader: Reader, eqn: Any, env: Env, ops: list[Op], prefix: str) -> None:
    """A function of refs that are made of the operands; their last values are the results."""
    if not all(eqn.params["is_initialized"]):
        raise NotImplementedError(f"run_state with uninitialised Refs{_where(eqn)}")
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
"""Readers of the primitives of refs."""


class _Place:
    """What the indexers of one equation name."""

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
                raise NotImplementedError(f"a Ref seen through {kind}{_where(eqn)}; index it alone")

    def indexers(self, moving: Sequence[Any]) -> Any:
        left = iter(moving)
        leaves = [self.fixed[i] if i in self.fixed else next(left) for i in range(len(self.flat))]
        return self.eqn.params["tree"].unflatten(leaves)

    def trivial(self) -> bool:
        """Whether the whole ref is meant."""
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
    """Results of a jaxpr in the equation's place; its ops are said to come from there."""
    made: list[Op] = []
    inner, local = reader.run(jaxpr, args, made, reader.scope(prefix, eqn))
    origin = reader.origins.setdefault(eqn.source_info.traceback, eqn.source_info)
    for op in made:
        op.origin = origin
    ops += made
    return [reader.read(local, v) for v in inner.outvars]


def _maker(x: Operand, ops: Sequence[Op]) -> Op | None:
    return next((o for o in reversed(ops) if any(r is x for r in o.results)), None)


def _is_zeros(x: Operand, ops: Sequence[Op]) -> bool:
    """Whether a ref was just filled with zeros, as transposed reads do before they add to it."""
    op = None if isinstance(x, Literal) else _maker(x, ops)
    if op is None:
        return isinstance(x, Literal) and x.is_zero()
    filled = op.operands[0] if op.prim == "broadcast_in_dim" else None
    return isinstance(filled, Literal) and filled.is_zero()


def _counts_along(x: Operand, ops: Sequence[Op]) -> int | None:
    """The dim along which an integer array counts from 0 (and is equal along others), if any."""
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
