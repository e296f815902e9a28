"""Shardings fixed by the user: in_shardings, out_shardings, sharding constraints; as actions."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from partir_search.constraints.ends import reconcile
from partir_search.constraints.fixed_layouts import FixedLayout
from partir_search.constraints.foreign import AnyMesh, spec_on, split_for
from partir_search.constraints.prefixes import check_prefix, is_leaf, positional
from partir_search.frontends.protocol import Returned
from partir_search.ir.core import Module, Op, Value
from partir_search.ir.mesh import MeshShape
from partir_search.messages.wording import multiples, shown
from partir_search.propagation.actions import Action
from partir_search.rules.other import UserSharding, user_sharding


def layout_from_spec(
    path: str, value: Value, spec: PartitionSpec, mesh: MeshShape, *, uneven: bool = False
) -> FixedLayout:
    """Fixed layout of a value from a PartitionSpec.

    Axes not in `spec` are replicated; with UNCONSTRAINED dims they may tile these dims only.

    Args:
      path: name of the value in messages.
      uneven: drop axes not dividing their dim, instead of an error.

    Raises:
      ValueError: `spec` does not fit the shape or the mesh.
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
    if 0 in shape:  # arrays without elements are replicated
        return FixedLayout(value.name, ((),) * len(shape), ())
    tiling = {a for axes in layout for a in axes}
    others = tuple(a for a in range(len(mesh.names)) if a not in tiling)
    free = [dim for dim, entry in enumerate(entries) if entry is PartitionSpec.UNCONSTRAINED]
    if not free:
        return FixedLayout(value.name, tuple(layout), others)
    closed_dims = [dim for dim in range(len(shape)) if dim not in free]
    return FixedLayout(
        value.name, tuple(layout), (), tuple((d, a) for d in closed_dims for a in others)
    )


def _names(entry: Any) -> tuple[str, ...]:
    """Names of the axes in an entry of a spec."""
    if entry is None or entry is PartitionSpec.UNCONSTRAINED:
        return ()
    return entry if isinstance(entry, tuple) else (entry,)


def _spec(
    path: str, value: Value, sharding: Any, mesh: MeshShape, devices: AnyMesh
) -> PartitionSpec | None:
    """Spec on `mesh` of the user's sharding of a value; None if free.

    Raises:
      TypeError: `sharding` is no NamedSharding, PartitionSpec or None.
    """
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
    """A sharding as an opaque pytree leaf: None and PartitionSpec are pytrees to jax."""

    sharding: Any


def broadcast_prefix(prefix: Any, tree: Any, what: str) -> list[Any]:
    """Leaf of `prefix` for each leaf of `tree`, as `jax.jit` broadcasts in_shardings.

    Args:
      what: name of the prefix in the ValueError for a mismatch.
    """
    try:
        spread = jax.tree.map(
            lambda s, sub: jax.tree.map(lambda _: _Boxed(s), sub), prefix, tree, is_leaf=is_leaf
        )
    except (ValueError, TypeError) as error:
        raise ValueError(f"{what} is no pytree prefix of the function's: {error}") from error
    return [box.sharding for box in jax.tree.leaves(spread)]


def layouts_from_shardings(
    paths: Sequence[str],
    values: Sequence[Any],
    shardings: Sequence[Any],
    mesh: MeshShape,
    devices: AnyMesh,
) -> list[FixedLayout | None]:
    """[values] fixed layout, or None for literals, scalars and free values."""
    layouts: list[FixedLayout | None] = []
    for path, value, sharding in zip(paths, values, shardings, strict=True):
        fixed = None
        if isinstance(value, Value):
            spec = _spec(path, value, sharding, mesh, devices)
            if spec is not None and value.type.shape:
                fixed = layout_from_spec(path, value, spec, mesh)
        layouts.append(fixed)
    return layouts


def _jit_layouts(
    paths: Sequence[str],
    values: Sequence[Any],
    shardings: Sequence[Any],
    mesh: MeshShape,
    devices: AnyMesh,
) -> list[FixedLayout | None]:
    """Fixed layouts from the shardings of a jitted function; None unless along axes of `mesh`."""
    known: list[Any] = []
    for value, s in zip(values, shardings, strict=False):
        named = isinstance(s, NamedSharding) and {n for e in s.spec for n in _names(e)}
        here = named is not False and (
            named <= set(mesh.whole) or spec_on(s, len(value.type.shape), mesh, devices) is not None
        )
        known.append(s if here else None)
    return layouts_from_shardings(paths[: len(known)], values[: len(known)], known, mesh, devices)


def _constraints(module: Module) -> Iterator[tuple[Op, UserSharding]]:
    """Sharding constraints on arrays."""
    for op in module.ops:
        if (found := user_sharding(op)) is not None:
            yield op, found


def _constraint_layout(
    op: Op, user: UserSharding, mesh: MeshShape, devices: AnyMesh
) -> tuple[FixedLayout | None, str]:
    """Fixed layout of a constraint, and a note on dims left out, or ""."""
    (value,), sharding = op.results, user.sharding
    where = f"{user.call} at {op.source}"
    spec = spec_on(sharding, len(value.type.shape), mesh, devices)
    if spec is None and isinstance(sharding, NamedSharding):
        names = {n for entry in sharding.spec for n in _names(entry)}
        if names <= set(mesh.whole):
            spec = sharding.spec  # on a subset of the devices, or in another order of devices
    if spec is None:
        ours = f"of the mesh<{mesh.user}>"
        return None, f"{where}: {sharding} does not lie along axes {ours}; it is left out"
    entries: list[Any] = [*spec, *(None,) * (len(value.type.shape) - len(spec))]
    for dim, entry in enumerate(entries):
        if dim in user.unconstrained or (user.open_unless_named and entry is None):
            entries[dim] = PartitionSpec.UNCONSTRAINED
    fixed = layout_from_spec(where, value, PartitionSpec(*entries), mesh, uneven=True)
    for dim, entry in enumerate(entries if value.type.nbytes else ()):
        axes = [a for name in _names(entry) for a in mesh.axes(name)]
        if axes != list(fixed.layout[dim]):
            n, tiles = value.type.shape[dim], mesh.size(axes)
            near = " or ".join(str(m) for m in (n - n % tiles, n - n % tiles + tiles) if m)
            return fixed, (
                f"{where}: dim {dim} of size {n} does not divide by {tiles}, the size of"
                f" {mesh.label(axes)!r}, and is tiled by {mesh.size(fixed.layout[dim])} unless it"
                f" is padded; {near} would divide"
            )
    return fixed, ""


def constraint_layouts(module: Module, mesh: MeshShape, devices: AnyMesh) -> list[FixedLayout]:
    """Fixed layouts of sharding constraints in the program."""
    found = [_constraint_layout(op, s, mesh, devices)[0] for op, s in _constraints(module)]
    return [fixed for fixed in found if fixed is not None]


def warn_of_constraints(module: Module, mesh: MeshShape, devices: AnyMesh) -> None:
    """Warns once per line of user code about constraints left out in whole or for some dims."""
    notes = (_constraint_layout(op, s, mesh, devices)[1] for op, s in _constraints(module))
    for note in dict.fromkeys(n for n in notes if n):
        warnings.warn(note, stacklevel=2)


def fixed_mesh(module: Module, mesh: MeshShape, devices: AnyMesh, given: Any) -> MeshShape:
    """The mesh, with axes split into sub-axes for fixed shardings on meshes of different axes.

    Args:
      devices: the user's mesh.
      given: pytree of shardings of arguments and results.
    """
    ends = jax.tree.leaves(given, is_leaf=is_leaf)
    pairs = [(s, len(s.spec)) for s in ends if isinstance(s, NamedSharding)]
    pairs += [(s.sharding, len(op.results[0].type.shape)) for op, s in _constraints(module)]
    regions = {n for op in module.ops if "manual" in op.params for n in op.params["manual"].along}
    if not pairs and not regions:
        return mesh
    return split_for(dict.fromkeys(pairs), mesh, devices, sorted(regions))


def fixed_actions(
    module: Module,
    mesh: MeshShape,
    devices: AnyMesh,
    inputs: tuple[Sequence[Any], Any],
    outputs: tuple[Any, Any],
    follows: Sequence[FixedLayout] = (),
    own: tuple[Sequence[Any], Sequence[Any]] = ((), ()),
) -> list[Action]:
    """Actions for all shardings fixed by the user.

    Args:
      mesh: result of `fixed_mesh`.
      devices: the user's mesh.
      inputs: positional arguments, and in_shardings (a pytree prefix) or None.
      outputs: pytree structure of the results, and out_shardings (a prefix) or None.
      follows: layouts of arguments, used for arguments without a sharding.
      own: shardings of a jitted function per flat argument and result, used without in_shardings
        or out_shardings.

    Raises:
      TypeError, ValueError: a sharding does not fit; names the path.
    """
    entering: list[FixedLayout | None] = []
    leaving: list[FixedLayout | None] = []
    args, wanted = inputs
    if wanted is not None:
        wanted = positional(wanted, args, module.arg_paths)
        spread = broadcast_prefix(tuple(wanted), tuple(args), "in_shardings")
        values = module.body.args[: len(spread)]
        entering = layouts_from_shardings(
            module.arg_paths[: len(spread)], values, spread, mesh, devices
        )
    out_tree, wanted = outputs
    if wanted is not None:
        results = jax.tree.unflatten(out_tree, list(module.body.results))
        results = results.out if isinstance(results, Returned) else results
        check_prefix("out_shardings", wanted, results, "result")
        spread = broadcast_prefix(wanted, results, "out_shardings")
        n = len(spread)
        paths = [f"result {p}".strip() for p in module.result_paths[:n]]
        leaving = layouts_from_shardings(paths, module.body.results[:n], spread, mesh, devices)
    if inputs[1] is None:
        entering = _jit_layouts(module.arg_paths, module.body.args, own[0], mesh, devices)
    if outputs[1] is None:
        leaving = _jit_layouts(module.result_paths, module.body.results, own[1], mesh, devices)
    followed = {fixed.value: fixed for fixed in follows}
    entering += [None] * (len(module.body.args) - len(entering))
    entering = [
        fixed or followed.get(v.name) for fixed, v in zip(entering, module.body.args, strict=True)
    ]
    return reconcile(module, mesh, entering, leaving, constraint_layouts(module, mesh, devices))
