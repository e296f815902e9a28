"""Primitives outside of all families: barriers, the user's constraints, no-ops."""

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
    """Identity; layouts fixed by the user are applied before any tactic (see `constraints/`).

    Not elementwise: search must keep the values before and after apart.
    """
    return _identity(op, fixed_by_user=True)


@dataclasses.dataclass(frozen=True, slots=True)
class UserSharding:
    """Sharding fixed by the user for an op's result.

    Attributes:
      sharding: the jax sharding.
      call: name of the user's function call.
      unconstrained: dims left open.
      open_unless_named: dims without an axis are open, not replicated.
    """

    sharding: Any
    call: str
    unconstrained: frozenset[int] = frozenset()
    open_unless_named: bool = False


def user_sharding(op: Op) -> UserSharding | None:
    """Sharding fixed by a user's constraint; None for an op without one.

    `jax.sharding.reshard` counts if its spec names an axis: arguments are traced without sharding,
    and jax writes reshards to empty specs for cotangents.
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
    """Two values with one tiling, required by the user."""
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
    """Identity without the user's placement, which planning decides; memory spaces are kept."""
    return dataclasses.replace(_identity(op), local=_local_put, linear=((0,),))


def _local_put(_: Any, op: Op, args: Sequence[Any]) -> Sequence[Any]:
    (device,) = op.params["devices"]
    return [jax.device_put(args[0], device)] if isinstance(device, jax.memory.Space) else args


@register("platform_index")
def platform_index(op: Op) -> OpRule:
    """Index of the compiled branch of a `platform_dependent`: a constant."""
    return whole(op, Kind.IDENTITY)
