"""Gradient accumulation: a train step over a batch as a scan over microbatches.

The step is traced on one microbatch and cut after its backward pass. Ops before the cut with a
dependency on the data run once per microbatch, values across the cut (gradients, the loss) are
averaged, and the optimizer runs once. The result equals the plain step if the loss is a mean over
the batch and examples are independent (no batch normalisation); the user asserts both by asking for
microbatches.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Literal, Var, jaxpr_as_fun

from partir_search.arguments.abstract_values import abstract
from partir_search.frontends.protocol import Returned
from partir_search.ir.argument_paths import leaf_path, parameter_names
from partir_search.ir.equations import innermost, is_backward, run_equations, subset
from partir_search.messages.renamed import renamed_option
from partir_search.messages.validators import whole_number
from partir_search.messages.wording import multiples, shown
from partir_search.planning.trace import Call, bound


def microbatched(
    fun: Callable[..., Any], microbatches: int | None = None, *, parts: int | None = None
) -> Callable[..., Any]:
    """Train step equal to `fun`, computed over equal microbatches in sequence.

    Arguments returned with equal types (the train state), keys and scalars are passed to every
    microbatch unchanged; the leading dim of every remaining array is the batch.

    Args:
      microbatches: number of microbatches.
      parts: deprecated name of `microbatches`.

    Raises:
      ValueError: `microbatches` does not divide the batch, the step has no backward pass, or a
        value other than a floating-point mean is used after the backward pass.
    """
    if not callable(fun):
        raise TypeError(f"microbatched takes a train step, not {shown(fun)}")
    given = renamed_option("parts", parts, "microbatches", microbatches, None)
    count = whole_number("microbatched: microbatches", given, 1)
    if count == 1:
        return fun

    @functools.wraps(fun)
    def accumulated(*args: Any, **kwargs: Any) -> Any:
        return accumulate(fun, count, parameter_names(fun, len(args)), args, kwargs)

    return accumulated


def accumulate(
    fun: Callable[..., Any],
    count: int,
    names: Sequence[str],
    args: Sequence[Any],
    kwargs: dict[str, Any],
) -> Any:
    """Results of a train step computed over microbatches.

    Args:
      fun: the train step.
      count: number of microbatches.
      names: names of positional arguments, for messages.
      args, kwargs: pytrees of arrays.

    Raises:
      ValueError: see `microbatched`.
    """
    leaves, tree = jax.tree.flatten((tuple(args), kwargs))
    out = jax.eval_shape(fun, *args, **kwargs)
    data = _data_leaves(args, kwargs, out, count, [*names, *sorted(kwargs)])

    def flat(*leaves: Any) -> Any:
        new_args, new_kwargs = jax.tree.unflatten(tree, leaves)
        return fun(*new_args, **new_kwargs)

    types = map(abstract, leaves)
    shapes = [_microbatch(x, count) if i in data else x for i, x in enumerate(types)]
    closed, small = jax.make_jaxpr(flat, return_shape=True)(*shapes)
    for x, y in zip(jax.tree.leaves(out), jax.tree.leaves(small), strict=True):
        if x.shape != y.shape:
            raise ValueError(
                f"microbatches={count}: a result of shape {x.shape} has one row per example;"
                " only means over the batch can be accumulated: return its mean"
            )
    results = _run(closed, leaves, data, count)
    return jax.tree.unflatten(jax.tree.structure(out), results)


def of_dynamic(
    fun: Callable[..., Any], call: Call, args: Sequence[Any], kwargs: dict[str, Any]
) -> Callable[..., Any]:
    """Function of a call's dynamic arguments, with the static arguments bound.

    Args:
      fun: the function of all arguments.
      call: the dynamic arguments.
      args, kwargs: all arguments.
    """
    static = {k: v for k, v in kwargs.items() if k not in call.kwargs}

    def run(*dynamic: Any, **named: Any) -> Any:
        return fun(*bound(call, args, dynamic), **named, **static)

    return run


def _microbatch(x: Any, count: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((x.shape[0] // count, *x.shape[1:]), x.dtype)


def _data_leaves(args: Any, kwargs: Any, out: Any, count: int, names: Sequence[str]) -> set[int]:
    """Positions of the leaves with a batch dim.

    Args:
      args, kwargs: all arguments.
      out: shapes of the results.
      count: number of microbatches.
      names: names of the arguments.
    """

    def signature(tree: Any) -> Any:
        leaves, structure = jax.tree.flatten(tree)
        return structure, tuple((abstract(x).shape, abstract(x).dtype) for x in leaves)

    changed: tuple[Any, ...] = ()
    if isinstance(out, Returned):
        changed, out = tuple(out.updates.values()), out.out
    returned = {signature(x) for x in (*changed, *(out if isinstance(out, tuple) else (out,)))}
    found: set[int] = set()
    first_leaf = 0
    batch, first = None, ""
    arguments = (*args, *(kwargs[k] for k in sorted(kwargs)))
    for name, argument in zip(names, arguments, strict=True):
        flat = jax.tree_util.tree_leaves_with_path(argument)
        leaves = [x for _, x in flat]
        if signature(argument) not in returned:
            for i, x in enumerate(map(abstract, leaves)):
                key = x.shape == (2,) and x.dtype == jnp.uint32
                if not x.shape or key or jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
                    continue
                batch = x.shape[0] if batch is None else batch
                path = leaf_path(name, flat[i][0])
                if x.shape[0] != batch:
                    raise ValueError(
                        f"microbatches={count}: the leading dim of {path} of shape {x.shape} must"
                        f" be the batch's, {batch} as of {first}: close over {path}, or give"
                        " it such a dim"
                    )
                first = first or path
                if batch % count:
                    raise ValueError(
                        f"microbatches={count}: {path} has shape {x.shape}: its leading dim, the"
                        f" batch of {batch}, does not divide by {count};"
                        f" {multiples(batch, count)} would divide, or use {_divisors(batch)}"
                    )
                found.add(first_leaf + i)
        first_leaf += len(leaves)
    if not found:
        raise ValueError(f"microbatches={count}: no argument but the train state has a batch")
    return found


def _divisors(batch: int) -> str:
    """Up to six divisors of the batch, as a hint to the user."""
    found = [n for n in range(2, min(batch, 64) + 1) if batch % n == 0][:6]
    return f"microbatches of {', '.join(map(str, found))}" if found else "microbatches=1"


def _run(closed: Any, leaves: Sequence[Any], data: set[int], count: int) -> list[Any]:
    jaxpr, consts = innermost(closed)
    cut = max((i for i, e in enumerate(jaxpr.eqns) if is_backward(e)), default=-1) + 1
    if not cut:
        raise ValueError(f"microbatches={count}: the step takes no gradient; nothing to accumulate")
    data_dependent = {v for i, v in enumerate(jaxpr.invars) if i in data}
    data_free, per_microbatch = [], []
    for eqn in jaxpr.eqns[:cut]:
        if any(isinstance(v, Var) and v in data_dependent for v in eqn.invars):
            data_dependent.update(eqn.outvars)
            per_microbatch.append(eqn)
        else:
            data_free.append(eqn)
    after = []
    direct = {v for i, v in enumerate(jaxpr.invars) if i in data}
    for eqn in jaxpr.eqns[cut:]:  # metrics of the data, per microbatch as well
        if any(isinstance(v, Var) and v in direct for v in eqn.invars):
            direct.update(eqn.outvars)
            per_microbatch.append(eqn)
        else:
            after.append(eqn)
    made = {v: e for e in per_microbatch for v in e.outvars}
    averaged = dict.fromkeys(
        v
        for v in (*(v for e in after for v in e.invars), *jaxpr.outvars)
        if isinstance(v, Var) and v in made
    )
    types: list[Any] = [v.aval for v in averaged]
    for v, aval in zip(averaged, types, strict=True):
        if not jnp.issubdtype(aval.dtype, jnp.floating):
            raise ValueError(
                f"microbatches={count}: {aval} leaves the gradient computation (made by"
                f" {made[v].primitive}) and cannot be averaged over microbatches"
            )
    env: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
    env |= zip(jaxpr.invars, leaves, strict=True)
    run_equations(jaxpr, data_free, env)
    data_vars = [v for i, v in enumerate(jaxpr.invars) if i in data]
    shared = [v for v in env if v not in data_vars]
    program = jaxpr_as_fun(subset(jaxpr, per_microbatch, [*shared, *data_vars], list(averaged)))
    shared_values = [env[v] for v in shared]

    def body(total: list[Any], examples: list[Any]) -> tuple[list[Any], None]:
        found = program(*shared_values, *examples)
        return [t + x.astype(t.dtype) / count for t, x in zip(total, found, strict=True)], None

    # Microbatch i has every `count`-th example, to be tiled as the batch is.
    stacked = [_stack(env[v], count) for v in data_vars]
    zeros = [jnp.zeros(t.shape, jnp.promote_types(t.dtype, jnp.float32)) for t in types]
    total, _ = lax.scan(body, zeros, stacked)
    env |= {v: x.astype(t.dtype) for v, x, t in zip(averaged, total, types, strict=True)}
    run_equations(jaxpr, after, env)
    return [v.val if isinstance(v, Literal) else env[v] for v in jaxpr.outvars]


def _stack(x: Any, count: int) -> Any:
    return jnp.swapaxes(x.reshape(x.shape[0] // count, count, *x.shape[1:]), 0, 1)
