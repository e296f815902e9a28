"""Bodies of primitives without a rule: of user libraries and of jax's sparse arrays.

Most primitives are defined in Python in terms of known ones. The definition is traced on the types
of an equation, and the jaxpr replaces the equation. A primitive without a traceable definition
stays one op, replicated.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Container, Hashable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import mlir

from partir_search.ir.core import Op, Operand

IDENTITIES = frozenset(
    {"announce_jaxpr", "nonbatchable", "nondifferentiable_backward", "nontraceable"}
)
"""Primitives that return their operands; equinox's only raise or report during tracing."""

CHOSEN = {"select_if_vmap": 1, "tie": 1}
"""Primitives that return one operand, by position."""

PURE = frozenset({"noinline"})
"""Primitives whose `impl` traces, although their lowering calls Python."""

REDUCED: Mapping[str, Callable[..., Any]] = {"pmax": jnp.max, "pmin": jnp.min, "psum": jnp.sum}
"""Collectives over dims by position, made by `vmap` from named axes."""

_HOST = ("callback", "SendToHost", "RecvFromHost")  # in the name of a custom call


class Bodies:
    """Bodies by primitive, parameters and operand types; each is traced once."""

    def __init__(self, ruled: Container[str]) -> None:
        """An empty cache; primitives named in `ruled` have no body."""
        self._ruled = ruled
        self._found: dict[Hashable, Any] = {}
        self._open: set[Hashable] = set()
        self._kept: dict[int, Any] = {}  # unhashable parameters, by id; keys contain the id

    def read(
        self, reader: Any, eqn: Any, env: dict[Any, Operand], ops: list[Op], prefix: str
    ) -> bool:
        """Reads the ops of an equation from the definition of the equation's primitive.

        Args:
          ops: list to which the ops are added.
          prefix: scope of the equation.

        Returns:
          False, with nothing read, if the primitive has no definition.
        """
        if (passed := self.passed(eqn)) is not None:
            env.update(zip(eqn.outvars, [reader.read(env, x) for x in passed], strict=True))
            return True
        if (jaxpr := self.body(eqn)) is None:
            return False
        args = [reader.read(env, x) for x in eqn.invars]
        with reader.origins.within(eqn):
            inner, local = reader.run(jaxpr, args, ops, reader.scope(prefix, eqn))
        results = [reader.read(local, x) for x in inner.outvars]
        env.update(zip(eqn.outvars, results, strict=True))
        return True

    def passed(self, eqn: Any) -> Sequence[Any] | None:
        """Operands returned by an identity; None for any further primitive."""
        name = eqn.primitive.name
        if name in CHOSEN:
            return eqn.invars[CHOSEN[name] :][:1]  # type: ignore[no-any-return]
        return eqn.invars if name in IDENTITIES else None

    def body(self, eqn: Any) -> Any:
        """Closed jaxpr that computes the equation, or None.

        None for primitives with a rule or with effects, and if no definition can be traced.
        """
        if eqn.effects or (eqn.primitive.name in self._ruled and not _positional(eqn)):
            return None
        key = self._key(eqn)
        if key not in self._found:
            self._open.add(key)
            jaxprs = (_trace(eqn, define) for define in _definitions(eqn))
            fit = (j for j in jaxprs if j is not None and not self._circular(j))
            self._found[key] = next(fit, None)
            self._open.discard(key)
        return self._found[key]

    def _circular(self, jaxpr: Any) -> bool:
        """True if a body contains an equation under replacement."""
        for eqn in _equations(jaxpr):
            if eqn.primitive.name not in self._ruled and not eqn.effects:
                if self._key(eqn) in self._open:
                    return True
                self.body(eqn)
        return False

    def _key(self, eqn: Any) -> Hashable:
        params = tuple((k, self._hashable(v)) for k, v in sorted(eqn.params.items()))
        return eqn.primitive, params, tuple(map(_operand_key, eqn.invars))

    def _hashable(self, param: Any) -> Hashable:
        try:
            hash(param)
        except TypeError:
            self._kept[id(param)] = param
            return id(param)
        return param  # type: ignore[no-any-return]


def _operand_key(x: Any) -> Hashable:
    """Type of an operand, and the number of a literal."""
    number = str(x.val) if hasattr(x, "val") else None
    return x.aval.shape, x.aval.dtype, getattr(x.aval, "weak_type", False), number


def _equations(jaxpr: Any) -> Iterator[Any]:
    """All equations of a jaxpr, nested ones included."""
    for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        yield eqn
        for param in eqn.params.values():
            for inner in param if isinstance(param, tuple | list) else (param,):
                if hasattr(getattr(inner, "jaxpr", inner), "eqns"):
                    yield from _equations(inner)


def _definitions(eqn: Any) -> Iterator[Callable[..., Any]]:
    """Functions of operands and parameters that compute the equation.

    The first choice is the function lowered by jax. A primitive without one is defined by its
    `impl`, unless its lowering calls Python: then `impl` works on the host.
    """
    primitive = eqn.primitive
    if _positional(eqn):
        reduce = REDUCED[primitive.name]
        yield lambda *xs, axes, axis_index_groups: [reduce(x, axes) for x in xs]
    elif (lowered := _lowered(primitive)) is not None:
        yield lowered
    elif primitive.name in PURE or not _calls_host(eqn):
        yield primitive.impl


def _positional(eqn: Any) -> bool:
    """True for a collective over dims by position instead of named axes."""
    if eqn.primitive.name not in REDUCED:
        return False
    return all(isinstance(axis, int) for axis in eqn.params.get("axes", ("",)))


def _lowered(primitive: Any) -> Callable[..., Any] | None:
    """Function given to `mlir.lower_fun` as the primitive's lowering, if lowered in this way."""
    entry = getattr(mlir, "_lowerings", {}).get(primitive)
    rule: Any = getattr(entry, "rule", entry)
    names = getattr(getattr(rule, "__code__", None), "co_freevars", ())
    if getattr(rule, "__name__", "") != "f_lowered" or "fun" not in names:
        return None
    return rule.__closure__[names.index("fun")].cell_contents  # type: ignore[no-any-return]


def _calls_host(eqn: Any) -> bool:
    """True if the primitive cannot be lowered, or its lowering calls Python on the host."""
    bound = functools.partial(eqn.primitive.bind, **eqn.primitive.get_bind_params(eqn.params))
    try:
        with warnings.catch_warnings(action="ignore"):
            text = jax.jit(bound).lower(*map(_shape, eqn.invars)).as_text()
    except Exception:
        return True
    lines = (line for line in text.splitlines() if "custom_call" in line)
    return any(name in line for line in lines for name in _HOST)


def _trace(eqn: Any, define: Callable[..., Any]) -> Any:
    """Closed jaxpr of `define` on the equation's types; None if `define` raises or does not fit.

    A definition that fails on abstract literals is traced again with their values.
    """
    literals = [hasattr(x, "val") for x in eqn.invars]
    for known in (False, True) if any(literals) else (False,):

        def run(*operands: Any, known: bool = known) -> list[Any]:
            each = zip(eqn.invars, operands, literals, strict=True)
            given = [x.val if known and literal else operand for x, operand, literal in each]
            return jax.tree.leaves(define(*given, **eqn.params))

        try:
            with (
                warnings.catch_warnings(action="ignore"),
                jax.threefry_partitionable(bool(eqn.ctx.threefry_partitionable)),
            ):
                jaxpr = jax.make_jaxpr(run)(*map(_shape, eqn.invars))
        except Exception:
            continue
        if [_type(a) for a in jaxpr.out_avals] == [_type(v.aval) for v in eqn.outvars]:
            return jaxpr
    return None


def _shape(x: Any) -> jax.ShapeDtypeStruct:
    weak = bool(getattr(x.aval, "weak_type", False))
    return jax.ShapeDtypeStruct(x.aval.shape, x.aval.dtype, weak_type=weak)


def _type(aval: Any) -> tuple[Any, Any]:
    return tuple(aval.shape), aval.dtype
