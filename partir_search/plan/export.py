"""Export of a plan: sharding constraints for plain `jax.jit`, or flax's logical axis rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Union

import jax
from jax.sharding import PartitionSpec

from partir_search.ir.argument_paths import nearest
from partir_search.ir.core import Module, Op, Value
from partir_search.ir.interpreter import interpret, run_whole
from partir_search.ir.partition import Partition
from partir_search.lowering.shard_map import named_sharding, partition_spec
from partir_search.messages.wording import shown

MeshAxes = Union[str, tuple[str, ...], None]


def constrained(partition: Partition, mesh: Any) -> Callable[..., list[Any]]:
    """The program on flat global arrays, with `with_sharding_constraint` on every tiled value.

    XLA's partitioner inserts the collectives. Constraints cannot express partial sums, rings, and
    freeing or keeping gathered copies; XLA's partitioner decides about all three.

    Raises:
      ValueError: the program contains a user's `shard_map`, or the mesh has Explicit axes.
    """
    module = partition.module
    if jax.sharding.AxisType.Explicit in mesh.axis_types:
        raise ValueError(
            "constraints can name Auto axes only, and the plan's mesh has Explicit ones: plan on"
            " jax.sharding.Mesh(mesh.devices, mesh.axis_names), whose axes are Auto"
        )
    for op in module.ops:
        if partition.rules[op.id].manual is not None:
            raise ValueError(
                f"the shard_map at {op.source} cannot be nested in a program for plain jax.jit;"
                " take in_shardings and out_shardings of the plan instead"
            )

    def run_op(op: Op, ins: Sequence[Any]) -> Sequence[Any]:
        return run_whole(partition.rules[op.id], op, ins)

    def seen(value: Value, x: Any) -> Any:
        layout = partition.layout(value)
        if not any(layout) or partition.partial_at_rest(value):
            return x
        spec = partition_spec(partition.mesh, layout, user=True)
        sharding = named_sharding(mesh, partition.mesh, spec)
        return jax.lax.with_sharding_constraint(x, sharding)

    def run(*args: Any) -> list[Any]:
        return interpret(module, partition.rules, args, run_op, seen)

    return run


def logical_axis_rules(
    specs: Mapping[str, PartitionSpec], names: Mapping[str, Sequence[str | None]]
) -> list[tuple[str, MeshAxes]]:
    """Rules (logical name, mesh axes) for `flax.linen.logical_axis_rules`.

    Args:
      specs: PartitionSpec of each argument, by path.
      names: logical name of each dim, by argument path.

    Raises:
      ValueError: dims with the same logical name are tiled differently; the message names both
        arguments.
    """
    found: dict[str, tuple[MeshAxes, str]] = {}
    for path, dims in names.items():
        entries = (*specs[path], *(None,) * len(dims))
        for name, axes in zip(dims, entries, strict=False):
            if name is None:
                continue
            known, where = found.setdefault(name, (axes, path))
            if known != axes:
                raise ValueError(
                    f"logical axis {name!r} is tiled on {known} in {where} and on {axes} in {path}:"
                    " give these dims different logical names, or group the arguments"
                )
    return [(name, axes) for name, (axes, _) in found.items()]


def paths_of(module: Module, prefix: str, tree: Any) -> dict[str, Any]:
    """Leaves of a pytree of tuples (or PartitionSpecs), by argument path.

    Raises:
      ValueError: a path is no argument's, or a tuple has the wrong length.
    """
    from_jax = jax.tree_util.tree_leaves_with_path(tree, is_leaf=_is_names)
    found = {}
    for keys, leaf in from_jax:
        inner = jax.tree_util.keystr(keys, simple=True, separator="/")
        path = "/".join(filter(None, (prefix, inner)))
        if path not in module.arg_paths:
            near = nearest(path, module.arg_paths)
            raise ValueError(f"no argument {path!r} to give logical names to; near it are: {near}")
        shape = module.body.args[module.arg_paths.index(path)].type.shape
        short = isinstance(leaf, PartitionSpec) and len(leaf) <= len(shape)
        if not short and (not isinstance(leaf, tuple) or len(leaf) != len(shape)):
            raise ValueError(
                f"logical names of {path}, of shape {shape}, are a tuple of a name or None for each"
                f" of {len(shape)} dims, not {shown(leaf)}"
            )
        found[path] = leaf
    return found


def _is_names(x: Any) -> bool:
    """True for a tuple of names and Nones; False for a tuple of subtrees, as optax's states."""
    return isinstance(x, tuple) and bool(x) and all(n is None or isinstance(n, str) for n in x)
