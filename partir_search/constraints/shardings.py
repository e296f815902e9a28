"""Shardings that the user fixed, as actions: in_shardings, out_shardings, sharding constraints."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from partir_search.constraints.ends import meeting
from partir_search.constraints.fixed_layouts import Wish
from partir_search.constraints.foreign import AnyMesh, spec_on, split_for
from partir_search.constraints.prefixes import check_prefix, is_leaf, positional
from partir_search.frontends.protocol import Returned
from partir_search.ir.core import Module, Op, Value
from partir_search.ir.mesh import MeshShape
from partir_search.messages.wording import multiples, shown
from partir_search.propagation.actions import Action


def spec_wish(
    path: str, value: Value, spec: PartitionSpec, mesh: MeshShape, *, uneven: bool = False
) -> Wish:
    """Wish of `spec` for `value`: tiled on the axes that `spec` names and on no others.

    With UNCONSTRAINED dims axes that are not named may tile these, and no other dim. ValueErrors
    name `path`.

    Args:
      uneven: leave out axes that do not divide their dim.
    """
    entries = tuple(spec)
    shape = value.type.shape
    if len(entries) > len(shape):
        raise ValueError(f"{path}: {spec} has {len(entries)} entries, the value has shape {shape}")
    entries += (None,) * (len(shape) - len(entries))
    layout: list[tuple[int, ...]] = []
    used: dict[int, int] = {}
    for dim, entry in enumerate(entries):
        axes: list[int] = []
        for name in _names(entry):
            try:
                found = mesh.axes(name)
            except ValueError as error:
                raise ValueError(f"{path}: {spec}: {error}") from None
            for axis in found:
                if axis in used:
                    raise ValueError(
                        f"{path}: {spec} uses axis {name!r} on dims {used[axis]} and {dim};"
                        " an axis can tile one dim of a value"
                    )
                used[axis] = dim
            axes += found
        fit = len(axes)
        while shape[dim] % mesh.size(axes[:fit]):
            fit -= 1
        if fit < len(axes) and not uneven:
            raise ValueError(
                f"{path}: dim {dim} of shape {shape} does not divide by {mesh.size(axes)}, the size"
                f" of {entry!r} in {spec}; {multiples(shape[dim], mesh.size(axes))} would divide,"
                " or choose another dim or axis"
            )
        layout.append(tuple(axes[:fit]))
    if 0 in shape:  # no elements: whole
        return Wish(value.name, ((),) * len(shape), ())
    tiling = {a for axes in layout for a in axes}
    others = tuple(a for a in range(len(mesh.names)) if a not in tiling)
    free = [dim for dim, entry in enumerate(entries) if entry is PartitionSpec.UNCONSTRAINED]
    if not free:
        return Wish(value.name, tuple(layout), others)
    barred = [dim for dim in range(len(shape)) if dim not in free]
    return Wish(value.name, tuple(layout), (), tuple((d, a) for d in barred for a in others))


def _names(entry: Any) -> tuple[str, ...]:
    """The axes that an entry of a spec names."""
    if entry is None or entry is PartitionSpec.UNCONSTRAINED:
        return ()
    return entry if isinstance(entry, tuple) else (entry,)


def _spec(
    path: str, value: Value, sharding: Any, mesh: MeshShape, devices: AnyMesh
) -> PartitionSpec | None:
    if sharding is None or isinstance(sharding, PartitionSpec):
        return sharding
    if isinstance(sharding, NamedSharding):
        spec = spec_on(sharding, len(value.type.shape), mesh, devices)
        return sharding.spec if spec is None else spec
    remedy = f"; write jax.P({sharding!r})" if isinstance(sharding, str) else ""
    raise TypeError(
        f"{path}: shardings are NamedSharding, PartitionSpec or None (free), not {shown(sharding)}"
        f"{remedy}"
    )


@dataclasses.dataclass(frozen=True)
class _Boxed:
    """A leaf that no pytree looks into."""

    sharding: Any


def broadcast_prefix(prefix: Any, tree: Any, what: str) -> list[Any]:
    """Leaves of `prefix` spread over the leaves of `tree`, as jit spreads in_shardings."""
    try:
        spread = jax.tree.map(
            lambda s, sub: jax.tree.map(lambda _: _Boxed(s), sub), prefix, tree, is_leaf=is_leaf
        )
    except (ValueError, TypeError) as error:
        raise ValueError(f"{what} is no pytree prefix of the function's: {error}") from error
    return [box.sharding for box in jax.tree.leaves(spread)]


def sharding_wishes(
    paths: Sequence[str],
    values: Sequence[Any],
    shardings: Sequence[Any],
    mesh: MeshShape,
    devices: AnyMesh,
) -> list[Wish | None]:
    """Wishes of one sharding (or None) per value."""
    wishes: list[Wish | None] = []
    for path, value, sharding in zip(paths, values, shardings, strict=True):
        wish = None
        if isinstance(value, Value):
            spec = _spec(path, value, sharding, mesh, devices)
            if spec is not None and value.type.shape:
                wish = spec_wish(path, value, spec, mesh)
        wishes.append(wish)
    return wishes


def _own_wishes(
    paths: Sequence[str],
    values: Sequence[Any],
    shardings: Sequence[Any],
    mesh: MeshShape,
    devices: AnyMesh,
) -> list[Wish | None]:
    """Wishes of a jitted function's own shardings that lie along axes of the mesh."""
    known: list[Any] = []
    for value, s in zip(values, shardings, strict=False):
        named = isinstance(s, NamedSharding) and {n for e in s.spec for n in _names(e)}
        here = named is not False and (
            named <= set(mesh.whole) or spec_on(s, len(value.type.shape), mesh, devices) is not None
        )
        known.append(s if here else None)
    return sharding_wishes(paths[: len(known)], values[: len(known)], known, mesh, devices)


def _constraints(module: Module) -> Iterator[tuple[Op, Any]]:
    """Constraints on arrays, with their shardings.

    Of `jax.sharding.reshard` the axes that it names: a step is traced for arguments that lie
    nowhere yet, so that None is often no word of the user's but the type of some cotangent.
    """
    for op in module.ops:
        if op.prim == "sharding_constraint" and op.results[0].type.shape:
            yield op, op.params["sharding"]
        elif op.prim == "reshard" and any(op.params["dst_sharding"].spec):
            yield op, op.params["dst_sharding"]


_CALLS = {"sharding_constraint": "with_sharding_constraint", "reshard": "reshard"}


def _constraint_wish(
    op: Op, sharding: Any, mesh: MeshShape, devices: AnyMesh
) -> tuple[Wish | None, str]:
    """The wish of a constraint, and a note on the part that is not kept, or ""."""
    (value,) = op.results
    where = f"{_CALLS[op.prim]} at {op.source}"
    spec = spec_on(sharding, len(value.type.shape), mesh, devices)
    if spec is None and isinstance(sharding, NamedSharding):
        names = {n for entry in sharding.spec for n in _names(entry)}
        if names <= set(mesh.whole):
            spec = sharding.spec  # on some of the devices, or on all of them in another order
    if spec is None:
        ours = f"of the mesh<{mesh.user}>"
        return None, f"{where}: {sharding} does not lie along axes {ours}; it is left out"
    loose = op.params.get("unconstrained_dims") or ()
    entries: list[Any] = [*spec, *(None,) * (len(value.type.shape) - len(spec))]
    for dim, entry in enumerate(entries):
        if dim in loose or (op.prim == "reshard" and entry is None):
            entries[dim] = PartitionSpec.UNCONSTRAINED
    wish = spec_wish(where, value, PartitionSpec(*entries), mesh, uneven=True)
    for dim, entry in enumerate(entries if value.type.nbytes else ()):
        axes = [a for name in _names(entry) for a in mesh.axes(name)]
        if axes != list(wish.layout[dim]):
            n, tiles = value.type.shape[dim], mesh.size(axes)
            near = " or ".join(str(m) for m in (n - n % tiles, n - n % tiles + tiles) if m)
            return wish, (
                f"{where}: dim {dim} of size {n} does not divide by {tiles}, the size of"
                f" {mesh.label(axes)!r}, and is tiled by {mesh.size(wish.layout[dim])} unless it is"
                f" padded; {near} would divide"
            )
    return wish, ""


def constraint_wishes(module: Module, mesh: MeshShape, devices: AnyMesh) -> list[Wish]:
    """Wishes of `with_sharding_constraint` in the user's code."""
    found = [_constraint_wish(op, s, mesh, devices)[0] for op, s in _constraints(module)]
    return [wish for wish in found if wish is not None]


def warn_of_constraints(module: Module, mesh: MeshShape, devices: AnyMesh) -> None:
    """Names each line whose constraints are not wholly kept, once."""
    notes = (_constraint_wish(op, s, mesh, devices)[1] for op, s in _constraints(module))
    for note in dict.fromkeys(n for n in notes if n):
        warnings.warn(note, stacklevel=2)


def fixed_mesh(module: Module, mesh: MeshShape, devices: AnyMesh, given: Any) -> MeshShape:
    """The mesh, its axes split where fixed shardings on other meshes need that.

    Args:
      given: a pytree of shardings of arguments and results.
    """
    ends = jax.tree.leaves(given, is_leaf=is_leaf)
    pairs = [(s, len(s.spec)) for s in ends if isinstance(s, NamedSharding)]
    pairs += [(s, len(op.results[0].type.shape)) for op, s in _constraints(module)]
    if not pairs:
        return mesh
    named = {n for op in module.ops if "manual" in op.params for n, _ in op.params["manual"].axes}
    return split_for(dict.fromkeys(pairs), mesh, devices, named)


def fixed_actions(
    module: Module,
    mesh: MeshShape,
    devices: AnyMesh,
    inputs: tuple[Sequence[Any], Any],
    outputs: tuple[Any, Any],
    follows: Sequence[Wish] = (),
    own: tuple[Sequence[Any], Sequence[Any]] = ((), ()),
) -> list[Action]:
    """Actions for everything that the user fixed.

    Args:
      mesh: as `fixed_mesh` says; `devices` is the user's.
      follows: of arguments, where nothing else is said of them.
      own: shardings per flat argument and result that hold where no others are given.
      inputs: positional arguments and their shardings (a prefix, or None).
      outputs: the results' tree and their shardings, likewise.
    """
    entering: list[Wish | None] = []
    leaving: list[Wish | None] = []
    args, wanted = inputs
    if wanted is not None:
        wanted = positional(wanted, args, module.arg_paths)
        spread = broadcast_prefix(tuple(wanted), tuple(args), "in_shardings")
        values = module.body.args[: len(spread)]
        entering = sharding_wishes(module.arg_paths[: len(spread)], values, spread, mesh, devices)
    out_tree, wanted = outputs
    if wanted is not None:
        results = jax.tree.unflatten(out_tree, list(module.body.results))
        results = results.out if isinstance(results, Returned) else results
        check_prefix("out_shardings", wanted, results, "result")
        spread = broadcast_prefix(wanted, results, "out_shardings")
        n = len(spread)
        paths = [f"result {p}".strip() for p in module.result_paths[:n]]
        leaving = sharding_wishes(paths, module.body.results[:n], spread, mesh, devices)
    if inputs[1] is None:
        entering = _own_wishes(module.arg_paths, module.body.args, own[0], mesh, devices)
    if outputs[1] is None:
        leaving = _own_wishes(module.result_paths, module.body.results, own[1], mesh, devices)
    followed = {wish.value: wish for wish in follows}
    entering += [None] * (len(module.body.args) - len(entering))
    entering = [
        wish or followed.get(v.name) for wish, v in zip(entering, module.body.args, strict=True)
    ]
    return meeting(module, mesh, entering, leaving, constraint_wishes(module, mesh, devices))
