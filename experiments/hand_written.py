"""Hand-written shardings of train steps under `jax.jit`.

FSDP shards one dim of each parameter over all axes, as the batch: the first dim that they divide
("fsdp"), the largest ("fsdp largest"), or the "embed" dim, as MaxText does ("fsdp embed"). FSDP and
TP shards "embed" over the first axis, as the batch, and heads, hidden units or vocabulary over the
second (https://github.com/AI-Hypercomputer/maxtext, `configs/base.yml`, `logical_axis_rules`).
Activations have no constraints; MaxText's have.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from experiments.cases import Program
from partir_search.ir.argument_paths import leaf_path

OUTPUTS = ("o", "out", "dn", "down", "w2", "wo")  # projections back to the residual stream
STACKED = ("blocks",)  # parameters of all layers in one array, with a leading dim
EXPERTS = ("w_in", "w_out")  # a matrix for each expert, with a leading dim


def first_dim_spec(
    path: str, shape: Sequence[int], axes: Sequence[str], mesh: Mesh
) -> PartitionSpec:
    """Spec of a parameter with the first dim that all axes divide, after the dim of layers."""
    stacked = any(w in STACKED for w in path.lower().split("/"))
    for i in range(int(stacked), len(shape) if len(shape) >= 2 + stacked else 0):
        if shape[i] % mesh.size == 0:
            return PartitionSpec(*[None] * i, tuple(axes))
    return PartitionSpec()


def parameter_spec(
    path: str, shape: Sequence[int], width: int, embed: Sequence[str], other: str, mesh: Mesh
) -> PartitionSpec:
    """Spec of a parameter, or of a moment of its shape.

    Args:
      path: of the leaf in the state.
      shape: of the leaf.
      width: size of the "embed" dim; 0 to shard the largest dim instead.
      embed: axes of the "embed" dim.
      other: axis of the first further dim that it divides; "" for none.
      mesh: the mesh.
    """
    words = path.lower().split("/")
    stacked = any(w in STACKED for w in words)
    if len(shape) < 2 + stacked:
        return PartitionSpec()
    entries: list[Any] = [None] * len(shape)
    first = int(stacked or (len(shape) > 2 and any(e in words[-1] for e in EXPERTS)))
    size = 1
    for axis in embed:
        size *= mesh.shape[axis]
    last = any(w in OUTPUTS for w in words[-2:])
    dims = [i for i in range(first, len(shape)) if shape[i] == width and shape[i] % size == 0]
    if not dims:  # a bias, a table of other width
        dims = [i for i in range(first, len(shape)) if shape[i] % size == 0]
        dims.sort(key=lambda i: -shape[i])
        last = False
    at = (dims[-1] if last else dims[0]) if dims else -1
    if at >= 0:
        entries[at] = tuple(embed)
    if other:
        free = [i for i in range(first, len(shape)) if i != at and shape[i] >= mesh.shape[other]]
        free = [i for i in free if shape[i] % mesh.shape[other] == 0]
        if free:
            entries[free[0]] = other
    return PartitionSpec(*entries)


def hand_written(case: Program, mesh: Mesh) -> dict[str, tuple[Any, list[Any], tuple[int, ...]]]:
    """Jitted functions over flat arguments, their arguments' shapes and donated positions, by name.

    Args:
      case: the program, whose first argument is the state.
      mesh: two axes.
    """
    leaves, tree = jax.tree.flatten(case.args)
    paths = [leaf_path("", keys[1:]) for keys, _ in jax.tree_util.tree_leaves_with_path(case.args)]
    states = len(jax.tree.leaves(case.args[0]))
    axes = tuple(mesh.axis_names)

    def flat(*values: Any) -> Any:
        return jax.tree.leaves(case.step(*jax.tree.unflatten(tree, values)))

    results = jax.eval_shape(flat, *leaves)
    found = {}
    width = case.width
    specs: dict[str, tuple[Any, tuple[str, ...]]] = {
        "fsdp": (lambda path, shape: first_dim_spec(path, shape, axes, mesh), axes),
        "fsdp largest": (lambda path, shape: parameter_spec(path, shape, 0, axes, "", mesh), axes),
        "fsdp embed": (
            lambda path, shape: parameter_spec(path, shape, width, axes, "", mesh),
            axes,
        ),
        "fsdp x tp": (
            lambda path, shape: parameter_spec(path, shape, width, axes[:1], axes[1], mesh),
            axes[:1],
        ),
    }
    for name, (spec_of, batch) in specs.items():
        shardings = [
            NamedSharding(mesh, spec_of(path, x.shape))
            if i < states
            else NamedSharding(mesh, PartitionSpec(batch))
            for i, (path, x) in enumerate(zip(paths, leaves, strict=True))
        ]
        out = [*shardings[:states], *[NamedSharding(mesh, PartitionSpec())] * len(results[states:])]
        donated = tuple(range(states))
        jitted = jax.jit(
            flat,
            in_shardings=shardings,
            out_shardings=out,
            donate_argnums=donated,
            keep_unused=True,
        )
        structs = [
            jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s)
            for x, s in zip(leaves, shardings, strict=True)
        ]
        found[name] = jitted, structs, donated
    return found
