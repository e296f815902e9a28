"""Shardings that the user fixed, as actions: in_shardings, out_shardings, sharding constraints."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from partir_search.ir.core import Module, Value
from partir_search.ir.mesh import MeshShape
from partir_search.propagation.actions import Action, Replicate, Tile


def spec_actions(path: str, value: Value, spec: PartitionSpec, mesh: MeshShape) -> list[Action]:
    """Actions that bring `value` to `spec`: tiles, and whole along all other axes.

    An UNCONSTRAINED dim leaves the axes that are not named free. ValueErrors name `path`.
    """
    entries = tuple(spec)
    shape = value.type.shape
    if len(entries) > len(shape):
        raise ValueError(f"{path}: {spec} has {len(entries)} entries, the value has shape {shape}")
    actions: list[Action] = []
    used: dict[str, int] = {}
    free = False
    for dim, entry in enumerate(entries):
        if entry is PartitionSpec.UNCONSTRAINED:
            free = True
            continue
        axes = () if entry is None else entry if isinstance(entry, tuple) else (entry,)
        tiles = 1
        for axis in axes:
            try:
                tiles *= mesh.sizes[mesh.index(axis)]
            except ValueError as error:
                raise ValueError(f"{path}: {spec}: {error}") from None
            if axis in used:
                raise ValueError(
                    f"{path}: {spec} uses axis {axis!r} on dims {used[axis]} and {dim};"
                    " an axis can tile one dim of a value"
                )
            used[axis] = dim
            actions.append(Tile(value.name, dim, axis))
        if shape[dim] % tiles or (tiles > 1 and not shape[dim]):
            raise ValueError(
                f"{path}: dim {dim} of shape {shape} does not divide by {tiles}, the size of"
                f" {entry!r} in {spec}; choose another dim or axis"
            )
    if not free:
        actions += [Replicate(value.name, a) for a in mesh.names if a not in used]
    return actions


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


def sharding_actions(
    paths: Sequence[str], values: Sequence[Any], shardings: Sequence[Any], mesh: MeshShape
) -> list[Action]:
    """Actions for one sharding (or None) per value."""
    actions: list[Action] = []
    for path, value, sharding in zip(paths, values, shardings, strict=True):
        spec = _spec(path, sharding)
        if spec is not None and isinstance(value, Value) and value.type.shape:
            actions += spec_actions(path, value, spec, mesh)
    return actions


def constraint_actions(module: Module, mesh: MeshShape) -> list[Action]:
    """Actions for `with_sharding_constraint` in the user's code."""
    actions: list[Action] = []
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
                actions += spec_actions(where, value, PartitionSpec(*entries), mesh)
    return actions


def fixed_actions(
    module: Module, mesh: MeshShape, inputs: tuple[Sequence[Any], Any], outputs: tuple[Any, Any]
) -> list[Action]:
    """Actions for everything that the user fixed.

    Args:
      inputs: positional arguments and their shardings (a prefix, or None).
      outputs: the results' tree and their shardings, likewise.
    """
    actions: list[Action] = []
    args, wanted = inputs
    if wanted is not None:
        if len(args) == 1 and not isinstance(wanted, tuple | list):
            wanted = (wanted,)
        spread = broadcast_prefix(tuple(wanted), tuple(args), "in_shardings")
        n = len(spread)
        actions += sharding_actions(module.arg_paths[:n], module.body.args[:n], spread, mesh)
    out_tree, wanted = outputs
    if wanted is not None:
        results = jax.tree.unflatten(out_tree, list(module.body.results))
        spread = broadcast_prefix(wanted, results, "out_shardings")
        paths = [f"result {p}".strip() for p in module.result_paths]
        actions += sharding_actions(paths, module.body.results, spread, mesh)
    return actions + constraint_actions(module, mesh)
