"""Primitives that fit no family: barriers, constraints of the user, no-ops."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax

from partir_search.ir.core import Op
from partir_search.ir.kind import Kind
from partir_search.ir.rule import OpRule
from partir_search.rules.registry import register, result_shape, whole


def _same(_: Any, op: Op, args: Sequence[Any]) -> Sequence[Any]:
    return args


@register(
    "sharding_constraint",
    "mesh_cast",
    "reshard",
    "pvary",
    "copy_to_host_async",
    "layout_constraint",
)
def constraint(op: Op) -> OpRule:
    """Identity; what the user constrains is decided before any tactic (see `constraints/`).

    Not elementwise, so that search does not merge the value before with the value after.
    """
    return _identity(op, fixes=True)


@dataclasses.dataclass(frozen=True, slots=True)
class UserSharding:
    """A sharding that the user fixes for an op's result.

    Attributes:
      call: name of the function that fixes it.
      unconstrained: dims that it leaves open.
      open_unless_named: dims without an axis are open, not replicated.
    """

    sharding: Any
    call: str
    unconstrained: frozenset[int] = frozenset()
    open_unless_named: bool = False


def user_sharding(op: Op) -> UserSharding | None:
    """The sharding that a constraint of the user's fixes; None for other ops.

    `jax.sharding.reshard` counts if its spec names an axis: arguments are traced without sharding,
    and jax itself writes reshards to empty specs for cotangents.
    """
    p = op.params
    if op.prim == "sharding_constraint" and result_shape(op):
        loose = frozenset(p.get("unconstrained_dims") or ())
        return UserSharding(p["sharding"], "with_sharding_constraint", loose)
    if op.prim == "reshard" and any(p["dst_sharding"].spec):
        return UserSharding(p["dst_sharding"], "reshard", open_unless_named=True)
    return None


def _identity(op: Op, **fields: Any) -> OpRule:
    rank = len(result_shape(op))
    return OpRule(
        Kind.IDENTITY,
        sizes=result_shape(op),
        operands=(tuple(range(rank)),),
        results=(tuple(range(rank)),),
        reducers=("",) * rank,
        local=_same,
        **fields,
    )


@register("shard_alike")
def shard_alike(op: Op) -> OpRule:
    """Both values share their dims, as the user asks."""
    dims = tuple(range(len(result_shape(op))))
    return OpRule(
        Kind.IDENTITY,
        sizes=result_shape(op),
        operands=(dims, dims),
        results=(dims, dims),
        reducers=("",) * len(dims),
        local=_same,
    )


@register("device_put")
def device_put(op: Op) -> OpRule:
    """Ignores the user's placement, which is ours to choose; keeps a memory space (pinned_host)."""
    return dataclasses.replace(_identity(op), local=_local_put, linear=((0,),))


def _local_put(_: Any, op: Op, args: Sequence[Any]) -> Sequence[Any]:
    (device,) = op.params["devices"]
    return [jax.device_put(args[0], device)] if isinstance(device, jax.memory.Space) else args


@register("platform_index")
def platform_index(op: Op) -> OpRule:
    """Index of the branch of a `platform_dependent` that is compiled: a constant."""
    return whole(op, Kind.IDENTITY)
