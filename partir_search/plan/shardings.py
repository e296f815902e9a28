"""Layouts of a function's arrays in a plan: shardings, abstract arguments, batches, skews."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any, Self

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from partir_search.arguments.placement import from_local, struct_of
from partir_search.frontends.protocol import Returned
from partir_search.ir.core import Module, Value
from partir_search.ir.mesh import MeshShape
from partir_search.lowering.shard_map import argument_specs, named_sharding, reorder, result_specs
from partir_search.plan.context import PlanContext
from partir_search.plan.planned import Planned


class Layouts:
    """Layouts of arguments and results in a `Plan`.

    Attributes:
      _planned: the module with its actions applied.
      _context: the mesh, and the pytrees of arguments and results.
    """

    def __init__(self, planned: Planned, context: PlanContext) -> None:
        self._planned, self._context = planned, context

    def on(self, mesh: Any) -> Self:
        """The same on a mesh with the same axes, of other types."""
        other = copy.copy(self)
        other._context = dataclasses.replace(self._context, mesh=mesh)
        return other

    @property
    def module(self) -> Module:
        return self._planned.graph.module

    @property
    def mesh(self) -> Any:
        """The mesh of the shardings below."""
        return self._context.mesh

    @property
    def mesh_shape(self) -> MeshShape:
        return self._planned.sketch.partition.mesh

    @property
    def partition_specs(self) -> Any:
        """(args, kwargs) pytree of PartitionSpecs."""
        return jax.tree.unflatten(
            self._context.in_tree, argument_specs(self._planned.sketch, user=True)
        )

    @property
    def in_shardings(self) -> Any:
        """(args, kwargs) pytree of NamedShardings on the user's mesh.

        An argument that is tiled by a part of an axis has one on the mesh whose axes are split.
        """
        return jax.tree.unflatten(self._context.in_tree, self.flat_in_shardings())

    @property
    def out_shardings(self) -> Any:
        """Pytree of NamedShardings of the results.

        Of a function that changes arguments in place a pair: those of its result, and those of the
        changed arguments by name.
        """
        found = jax.tree.unflatten(self._context.out_tree, self.flat_out_shardings())
        if isinstance(found, Returned):
            return (found.out, found.updates) if found.updates else found.out
        return found

    @property
    def abstract_args(self) -> Any:
        """(args, kwargs) pytree of ShapeDtypeStructs that carry the plan's shardings."""
        args = zip(self.module.body.args, self.flat_in_shardings(), strict=True)
        structs = [struct_of(jax.ShapeDtypeStruct(v.type.shape, v.type.dtype), s) for v, s in args]
        return jax.tree.unflatten(self._context.in_tree, structs)

    @property
    def abstract_state(self) -> Any:
        """The first argument (the train state) likewise: what orbax restores into."""
        return self.abstract_args[0][0]

    def make_global_batch(self, local: Any) -> Any:
        """Global arrays of one argument, of what this process has read of it.

        Args:
          local: a pytree like that of an argument; every process passes the rows that its devices
            hold (`in_shardings` and `addressable_devices_indices_map` say which), or all of them.

        Raises:
          ValueError: no argument has this structure and these types.

        See `jax.make_array_from_process_local_data`.
        """
        leaves: list[Any] = jax.tree.leaves(local)
        tree: Any = jax.tree.structure(local)
        for part in (*self.abstract_args[0], *self.abstract_args[1].values()):
            wanted: list[Any] = jax.tree.leaves(part)
            kinds = [[(_dtype(x), np.ndim(x)) for x in each] for each in (leaves, wanted)]
            if jax.tree.structure(part) == tree and kinds[0] == kinds[1]:
                pairs = zip(leaves, wanted, strict=True)
                made = [from_local(x, w.shape, w.sharding) for x, w in pairs]
                return jax.tree.unflatten(tree, made)
        raise ValueError(
            f"no argument of {self.module.name!r} has the structure {tree} with"
            f" {[str(_dtype(x)) for x in leaves][:4]}; pass what this process has of a whole"
            " argument"
        )

    def flat_out_shardings(self) -> list[NamedSharding]:
        specs = result_specs(self._planned.sketch, user=True)
        return [self._named(s) for s in specs]

    def flat_in_shardings(self) -> list[NamedSharding]:
        return [self._named(s) for s in argument_specs(self._planned.sketch, user=True)]

    def _named(self, spec: PartitionSpec) -> NamedSharding:
        return named_sharding(self._context.mesh, self.mesh_shape, spec)

    def arguments(self) -> list[tuple[str, Value, PartitionSpec]]:
        """(path, value, spec) of each argument."""
        module = self.module
        specs = argument_specs(self._planned.sketch, user=True)
        return list(zip(module.arg_paths, module.body.args, specs, strict=True))

    def skew(self, state: Any) -> Any:
        """Train state as the step takes it, of `auto_partition(..., skewed_state=True)`.

        Args:
          state: an argument of the step, of the shapes that the plan is for, in the usual order.

        Raises:
          ValueError: no argument has this structure and these shapes.
        """
        return self._reordered(state, into=True)

    def unskew(self, state: Any) -> Any:
        """Inverse of `skew`: for export, checkpoints and evaluation."""
        return self._reordered(state, into=False)

    def _reordered(self, state: Any, into: bool) -> Any:
        leaves: list[Any] = jax.tree.leaves(state)
        tree: Any = jax.tree.structure(state)
        args, kwargs = jax.tree.unflatten(self._context.in_tree, range(len(self.module.body.args)))
        for subtree in (*args, *kwargs.values()):
            places = jax.tree.leaves(subtree)
            shapes = [self.module.body.args[i].type.shape for i in places]
            if tree == jax.tree.structure(subtree) and shapes == list(map(np.shape, leaves)):
                found = reorder(self._planned.program, self._context.mesh, places, leaves, into)
                return jax.tree.unflatten(tree, found)
        raise ValueError(
            f"no argument of {self.module.name!r} has the structure and shapes of {tree}; pass a"
            " whole argument of the step"
        )


def _dtype(leaf: Any) -> Any:
    """A leaf's type; of what is no array, its class."""
    return getattr(leaf, "dtype", type(leaf).__name__)
