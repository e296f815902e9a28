"""Equations of a jaxpr, and closed jaxprs of subsets of them, for rewrites of jaxprs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax.extend import core
from jax.extend.core import Jaxpr, jaxpr_as_fun

from partir_search.ir import source_names


def innermost(closed: Any) -> tuple[Jaxpr, Sequence[Any]]:
    """Innermost jaxpr of nested calls (`jax.jit`) with one equation each, and its constants."""
    jaxpr, consts = closed.jaxpr, closed.consts
    while len(jaxpr.eqns) == 1 and "jaxpr" in jaxpr.eqns[0].params and not consts:
        (eqn,) = jaxpr.eqns
        inner = eqn.params["jaxpr"]
        same = list(eqn.invars) == jaxpr.invars and list(eqn.outvars) == jaxpr.outvars
        if not same or not hasattr(inner, "consts"):
            break
        jaxpr, consts = inner.jaxpr, inner.consts
    return jaxpr, consts


def is_backward(eqn: Any) -> bool:
    """True if an equation, or one nested in it, belongs to a backward pass."""
    if source_names.is_backward(str(eqn.source_info.name_stack)):
        return True
    return any(is_backward(e) for p in eqn.params.values() if hasattr(p, "eqns") for e in p.eqns)


def run_equations(jaxpr: Jaxpr, eqns: Sequence[Any], env: dict[Any, Any]) -> None:
    """Runs equations on the values in `env` and adds the results to it."""
    known = list(env)
    made = [v for e in eqns for v in e.outvars]
    if made:
        found = jaxpr_as_fun(subset(jaxpr, eqns, known, made))(*(env[v] for v in known))
        env |= zip(made, found, strict=True)


def subset(jaxpr: Jaxpr, eqns: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Any:
    """Closed jaxpr of some equations; since jax 0.11 open and closed jaxprs are one class."""
    new = jaxpr.replace(
        constvars=[],
        invars=list(inputs),
        outvars=list(outputs),
        eqns=list(eqns),
        debug_info=jaxpr.debug_info.with_unknown_names(),
    )
    closed: Any = getattr(core, "ClosedJaxpr", Jaxpr)
    return closed(new, ())
