"""Ops with regions that write mutable refs, rewritten to take and return the refs' values.

The value of a ref written in a region is one more operand (a carry of a loop), and the new value is
one more result: the program equals one written with a carry. A ref that is only read stays a
constant of the loop.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import jax

from partir_search.ir.core import Op, Operand, Region, Value
from partir_search.ir.origins import Origins
from partir_search.ir.source_names import source_line

Env = dict[Any, Operand]

_EFFECTS = frozenset({"ReadEffect", "WriteEffect", "AccumEffect", "InternalMutableArrayEffect"})


class Reader(Protocol):
    """Methods of the jaxpr reader used in this file."""

    origins: Origins

    def read(self, env: Env, atom: Any) -> Operand: ...

    def value(self, aval: Any, name: str) -> Value: ...

    def scope(self, prefix: str, eqn: Any) -> str: ...

    def run(
        self, jaxpr: Any, args: Sequence[Operand], ops: list[Op], prefix: str
    ) -> tuple[Any, Env]: ...


def has_effect(eqn: Any) -> bool:
    """True if an equation has effects besides uses of refs."""
    return any(type(e).__name__ not in _EFFECTS for e in eqn.effects)


def is_ref(atom: Any) -> bool:
    return isinstance(atom.aval, jax.ref.AbstractRef)


def check_no_ref(constant: Any) -> None:
    """Rejects a closed-over ref.

    Raises:
      ValueError: the constant is a ref; refs must be arguments.
    """
    if isinstance(constant, jax.ref.Ref):
        raise ValueError(
            f"the function closes over a {jax.typeof(constant)}, whose tiling no argument shows:"
            " pass it to the function as an argument, which the call changes in place"
        )


def written(eqn: Any) -> tuple[Any, ...]:
    """Variables of the refs written by an equation with effects, in the order of its operands."""
    touched = {id(getattr(e, "input", None)) for e in eqn.effects if _writes(e)}
    return tuple(dict.fromkeys(v for v in eqn.invars if id(v) in touched))


def _writes(effect: Any) -> bool:
    return type(effect).__name__ in ("WriteEffect", "AccumEffect")


def write_back(atoms: Sequence[Any], env: Env, inner: Any, local: Env) -> None:
    """Stores the final values of an inlined call's refs in the caller's refs."""
    for var, atom in zip(inner.invars, atoms, strict=True):
        if is_ref(atom):
            env[atom] = local[var]


# Ops with regions -------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class Carried:
    """An equation whose regions write refs, with their values as operands and results.

    Attributes:
      invars / outvars: operands and results; a ref's variable in `outvars` is its new value.
    """

    regions: tuple[Region, ...]
    invars: tuple[Any, ...]
    outvars: tuple[Any, ...]
    params: Mapping[str, Any]


def carried(reader: Reader, eqn: Any, params: Mapping[str, Any], stem: str) -> Carried:
    """The equation with the values of refs written by its regions as operands and results."""
    make = _CARRIED.get(eqn.primitive.name)
    if make is None:
        raise NotImplementedError(
            f"{eqn.primitive.name} writes to a Ref{where(eqn)}, which is not supported: let it"
            " return the new value, and write that to the Ref"
        )
    return make(reader, eqn, params, stem)


def where(eqn: Any) -> str:
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
    const_refs = [i for i in at if i < consts]
    scanned = [i for i in at if i >= consts + carries]
    args, ops = _args(reader, eqn.params["jaxpr"], stem), list[Op]()
    inner, local = reader.run(eqn.params["jaxpr"], args, ops, "")
    outs = [reader.read(local, v) for v in inner.outvars]
    final = {i: local[inner.invars[i]] for i in at}
    order = [i for i in range(consts) if i not in const_refs]
    order += [*range(consts, consts + carries), *const_refs, *range(consts + carries, len(args))]
    results = [*outs[:carries], *(final[i] for i in const_refs), *outs[carries:]]
    results += [final[i] for i in scanned]
    made = [*eqn.outvars[:carries], *(eqn.invars[i] for i in const_refs), *eqn.outvars[carries:]]
    made += [eqn.invars[i] for i in scanned]
    counts = {"num_consts": consts - len(const_refs), "num_carry": carries + len(const_refs)}
    return Carried(
        (Region(tuple(args[i] for i in order), tuple(ops), tuple(results)),),
        tuple(eqn.invars[i] for i in order),
        tuple(made),
        {**params, **counts},
    )


class _Unread:
    """An unused result."""

    def __init__(self, aval: Any) -> None:
        self.aval = aval


def _while(reader: Reader, eqn: Any, params: Mapping[str, Any], stem: str) -> Carried:
    """A loop whose condition and body write refs, with the semantics of `jax.jit`.

    Condition and body each see their own writes, and for refs written by the other one the value
    before the loop. Writes of the condition are kept if the body runs afterwards.
    """
    tested, bodied = params["cond_nconsts"], params["body_nconsts"]
    cond, body = eqn.params["cond_jaxpr"], eqn.params["body_jaxpr"]
    atoms = eqn.invars[:tested], eqn.invars[tested : tested + bodied]
    wrote = _written_inside(cond)[:tested], _written_inside(body)[:bodied]
    kept, refs = (
        [
            [v for v, w in zip(*side, strict=True) if w is wanted]
            for side in zip(atoms, wrote, strict=True)
        ]
        for wanted in (False, True)
    )
    if set(refs[0]) & set(refs[1]):
        raise NotImplementedError(
            f"condition and body of a while loop write to the same Ref{where(eqn)}, which jax does"
            " not run: let only the body write to it"
        )

    def fresh(atoms: Sequence[Any], name: str) -> list[Any]:
        return [reader.value(v.aval, f"{stem}.{name}") for v in atoms]

    def run(which: int, jaxpr: Any, consts: Any, refs: Any, carry: Any, ops: list[Op]) -> Any:
        left = iter(refs), iter(consts)
        args = [next(left[0] if w else left[1]) for w in wrote[which]]
        inner, local = reader.run(jaxpr, [*args, *carry], ops, "")
        outs = [reader.read(local, v) for v in inner.outvars]
        final = [local[v] for v, w in zip(inner.invars, wrote[which], strict=False) if w]
        return outs, final

    regions = []
    for which in (0, 1):
        ops: list[Op] = []
        consts = [fresh(kept[0], "arg"), fresh(kept[1], "arg")]
        carry = fresh(eqn.outvars, "arg")
        ref_args = [fresh(refs[0], "ref"), fresh(refs[1], "ref")]
        taken = [*(consts[0] if refs[0] or not which else ()), *(consts[1] if which else ())]
        after: list[Any] = ref_args[0]
        if not which or refs[0]:
            results, after = run(0, cond, consts[0], ref_args[0], carry, ops)
        if which:
            outs, final = run(1, body, consts[1], ref_args[1], carry, ops)
            results = [*outs, *after, *final]
        regions.append(
            Region((*taken, *carry, *ref_args[0], *ref_args[1]), tuple(ops), tuple(results))
        )
    given = [*(kept[0] if refs[0] else ()), *kept[1]]
    return Carried(
        tuple(regions),
        (*kept[0], *given, *eqn.invars[tested + bodied :], *refs[0], *refs[1]),
        (*eqn.outvars, *(_Unread(v.aval) if v in atoms[1] else v for v in refs[0]), *refs[1]),
        {**params, "cond_nconsts": len(kept[0]), "body_nconsts": len(given)},
    )


def _written_inside(jaxpr: Any) -> list[bool]:
    """Per argument of a jaxpr: True for a ref with a write inside."""
    inner = getattr(jaxpr, "jaxpr", jaxpr)
    touched = {
        id(getattr(e, "input", None)) for eqn in inner.eqns for e in eqn.effects if _writes(e)
    }
    return [id(v) in touched for v in inner.invars]


def _straight(reader: Reader, eqn: Any, params: Mapping[str, Any], stem: str) -> Carried:
    """A cond or a call: operands are unchanged, new values of refs are results."""
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
