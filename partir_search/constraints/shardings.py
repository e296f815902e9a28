"""Shardings that the user fixed, as actions: in_shardings, out_shardings, sharding constraints."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from partir_search.constraints.ends import meeting
from partir_search.constraints.wishes import Wish
from partir_search.ir.core import Module, Value
from partir_search.ir.mesh import MeshShape
from partir_search.propagation.actions import Action


def spec_wish(path: str, value: Value, spec: PartitionSpec, mesh: MeshShape) -> Wish:
    """What `spec` says of `value`: tiled on the axes that it names and on no others.

    With UNCONSTRAINED dims axes that are not named may tile these, and no other dim. ValueErrors
    name `path`.
    """
    entries = tuple(spec)
    shape = value.type.shape
    if len(entries) > len(shape):
        raise ValueError(f"{path}: {spec} has {len(entries)} entries, the value has shape {shape}")
    entries += (None,) * (len(shape) - len(entries))
    layout: list[tuple[int, ...]] = []
    used: dict[int, int] = {}
    for dim, entry in enumerate(entries):
        loose = entry is None or entry is PartitionSpec.UNCONSTRAINED
        names = () if loose else entry if isinstance(entry, tuple) else (entry,)
        axes: list[int] = []
        for name in names:
            try:
                axis = mesh.index(name)
            except ValueError as error:
                raise ValueError(f"{path}: {spec}: {error}") from None
            if axis in used:
                raise ValueError(
                    f"{path}: {spec} uses axis {name!r} on dims {used[axis]} and {dim};"
                    " an axis can tile one dim of a value"
                )
            used[axis] = dim
            axes.append(axis)
        tiles = mesh.size(axes)
        if shape[dim] % tiles:
            raise ValueError(
                f"{path}: dim {dim} of shape {shape} does not divide by {tiles}, the size of"
                f" {entry!r} in {spec}; choose another dim or axis"
            )
        layout.append(tuple(axes))
    if 0 in shape:  # no elements: whole
        return Wish(value.name, ((),) * len(shape), ())
    others = tuple(a for a in range(len(mesh.names)) if a not in used)
    free = [dim for dim, entry in enumerate(entries) if entry is PartitionSpec.UNCONSTRAINED]
    if not free:
        return Wish(value.name, tuple(layout), others)
    barred = [dim for dim in range(len(shape)) if dim not in free]
    return Wish(value.name, tuple(layout), (), tuple((d, a) for d in barred for a in others))


def _spec(path: str, sharding: Any) -> PartitionSpec | None:
    if sharding is None or isinstance(sharding, PartitionSpec):
        return sharding
    if isinstance(sharding, NamedSharding):
        return sharding.spec
    raise TypeError(
        f"{path}: shardings are NamedSharding, PartitionSpec or None (free), not {sharding!r}"
    )


def _is_leaf(x: Any) -> bool:
    return x is None or isinstance(x, PartitionSpec | jax.sharding.Sharding)


@dataclasses.dataclass(frozen=True)
class _Boxed:
    """A leaf that no pytree looks into."""

    sharding: Any


def broadcast_prefix(prefix: Any, tree: Any, what: str) -> list[Any]:
    """Leaves of `prefix` spread over the leaves of `tree`, as jit spreads in_shardings."""
    try:
        spread = jax.tree.map(
            lambda s, sub: jax.tree.map(lambda _: _Boxed(s), sub), prefix, tree, is_leaf=_is_leaf
        )
    except (ValueError, TypeError) as error:
        raise ValueError(f"{what} is no pytree prefix of the function's: {error}") from error
    return [box.sharding for box in jax.tree.leaves(spread)]


def sharding_wishes(
    paths: Sequence[str], values: Sequence[Any], shardings: Sequence[Any], mesh: MeshShape
) -> list[Wish | None]:
    """What one sharding (or None) per value says."""
    wishes: list[Wish | None] = []
    for path, value, sharding in zip(paths, values, shardings, strict=True):
        spec, wish = _spec(path, sharding), None
        if spec is not None and isinstance(value, Value) and value.type.shape:
            wish = spec_wish(path, value, spec, mesh)
        wishes.append(wish)
    return wishes


def constraint_wishes(module: Module, mesh: MeshShape) -> list[Wish]:
    """What `with_sharding_constraint` in the user's code says."""
    wishes: list[Wish] = []
    for op in module.ops:
        sharding = op.params.get("sharding")
        if op.prim == "sharding_constraint" and isinstance(sharding, NamedSharding):
            value = op.results[0]
            where = f"with_sharding_constraint at {op.source}"
            if value.type.shape:
                spec = sharding.spec
                loose = op.params.get("unconstrained_dims") or ()
                entries = [
                    PartitionSpec.UNCONSTRAINED if d in loose else e
                    for d, e in enumerate((*spec, *(None,) * (len(value.type.shape) - len(spec))))
                ]
                wishes.append(spec_wish(where, value, PartitionSpec(*entries), mesh))
    return wishes


def fixed_actions(
    module: Module, mesh: MeshShape, inputs: tuple[Sequence[Any], Any], outputs: tuple[Any, Any]
) -> list[Action]:
    """Actions for everything that the user fixed.

    Args:
      inputs: positional arguments and their shardings (a prefix, or None).
      outputs: the results' tree and their shardings, likewise.
    """
    entering: list[Wish | None] = []
    leaving: list[Wish | None] = []
    args, wanted = inputs
    if wanted is not None:
        if len(args) == 1 and not isinstance(wanted, tuple | list):
            wanted = (wanted,)
        spread = broadcast_prefix(tuple(wanted), tuple(args), "in_shardings")
        n = len(spread)
        entering = sharding_wishes(module.arg_paths[:n], module.body.args[:n], spread, mesh)
    out_tree, wanted = outputs
    if wanted is not None:
        results = jax.tree.unflatten(out_tree, list(module.body.results))
        spread = broadcast_prefix(wanted, results, "out_shardings")
        paths = [f"result {p}".strip() for p in module.result_paths]
        leaving = sharding_wishes(paths, module.body.results, spread, mesh)
    return meeting(module, mesh, entering, leaving, constraint_wishes(module, mesh))
