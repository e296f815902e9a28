"""Layouts of a plan's arrays: shardings, abstract arguments, global batches, reordered state."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Self

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from partir_search.arguments.placement import from_local, struct_of
from partir_search.frontends.protocol import FrontEnd, Returned, SplitArguments
from partir_search.frontends.registry import claimed
from partir_search.ir.core import Module, Value
from partir_search.ir.mesh import MeshShape
from partir_search.lowering.shard_map import (
    argument_specs,
    named_sharding,
    reorder_arguments,
    result_specs,
)
from partir_search.plan.alternatives import TriedPipeline
from partir_search.plan.context import PlanContext
from partir_search.plan.planned import Planned
from partir_search.plan.planned_array import planned_array
from partir_search.plan.staged_order import reorder_stages

ArgumentTrees = tuple[tuple[Any, ...], dict[str, Any]]  # of positional and keyword arguments


class Layouts:
    """Layouts of arguments and results in a `Plan`.

    Attributes:
      _planned: the module with its actions applied.
      _context: the mesh, and the tree structures of arguments and results.
    """

    def __init__(self, planned: Planned, context: PlanContext) -> None:
        self._planned, self._context = planned, context

    def on(self, mesh: Any) -> Self:
        """Copy of the plan on a mesh with the same axes but different axis types."""
        other = copy.copy(self)
        other._context = dataclasses.replace(self._context, mesh=mesh)
        return other

    def beside(self, pipelines: Sequence[TriedPipeline]) -> Self:
        """Copy of the plan that names the pipelines tried."""
        other = copy.copy(self)
        other._context = dataclasses.replace(self._context, pipelines=tuple(pipelines))
        return other

    @property
    def pipelines(self) -> tuple[TriedPipeline, ...]:
        """Pipelines planned in full, and the step without one, to choose from; () for no choice."""
        return self._context.pipelines

    @property
    def module(self) -> Module:
        return self._planned.module

    @property
    def mesh(self) -> Any:
        """Mesh of the shardings below."""
        return self._context.mesh

    @property
    def mesh_shape(self) -> MeshShape:
        return self._planned.mesh

    @property
    def partition_specs(self) -> ArgumentTrees:
        """(args, kwargs) with a pytree of PartitionSpecs for each argument."""
        return self._by_argument(argument_specs(self._planned.sketch, user=True))

    @property
    def planned_arrays(self) -> ArgumentTrees:
        """(args, kwargs) with pytrees of `PlannedArray`s, which print their type and tiling.

        treescope draws them: ``treescope.show(plan)``.
        """
        mesh, slots = self.mesh_shape, self._planned.sketch.body.args
        return self._by_argument(
            [
                planned_array(value, spec, slot.layout, mesh)
                for (_, value, spec), slot in zip(self.arguments(), slots, strict=True)
            ]
        )

    @property
    def in_shardings(self) -> ArgumentTrees:
        """(args, kwargs) with a pytree of NamedShardings on the user's mesh for each argument.

        An argument tiled on a sub-axis has a NamedSharding on the mesh with the axis split.
        """
        return self._by_argument(self.flat_in_shardings())

    @property
    def out_shardings(self) -> Any:
        """Pytree of NamedShardings of the results.

        For a function that changes arguments in place, the pair (shardings of the results,
        shardings of the changed arguments by name).
        """
        found = jax.tree.unflatten(self._context.out_tree, self.flat_out_shardings())
        if isinstance(found, Returned):
            return (found.out, found.updates) if found.updates else found.out
        return found

    @property
    def abstract_args(self) -> ArgumentTrees:
        """(args, kwargs) with pytrees of ShapeDtypeStructs with the plan's shardings."""
        args = zip(self.module.body.args, self.flat_in_shardings(), strict=True)
        structs = [struct_of(jax.ShapeDtypeStruct(v.type.shape, v.type.dtype), s) for v, s in args]
        return self._by_argument(structs)

    @property
    def abstract_state(self) -> Any:
        """First argument (the train state) as ShapeDtypeStructs with shardings, for orbax."""
        return self.abstract_args[0][0]

    def make_global_batch(self, local: Any) -> Any:
        """Builds the global arrays of one argument from process-local data.

        See `jax.make_array_from_process_local_data`.

        Args:
          local: pytree with the structure of an argument. Every process passes the rows held by its
            own devices (see `in_shardings` and `addressable_devices_indices_map`), or all rows.

        Raises:
          ValueError: no argument has the structure and dtypes of `local`.
        """
        leaves: list[Any] = jax.tree.leaves(local)
        tree: Any = jax.tree.structure(local)
        for argument in (*self.abstract_args[0], *self.abstract_args[1].values()):
            wanted: list[Any] = jax.tree.leaves(argument)
            kinds = [[(_dtype(x), np.ndim(x)) for x in each] for each in (leaves, wanted)]
            if jax.tree.structure(argument) == tree and kinds[0] == kinds[1]:
                pairs = zip(leaves, wanted, strict=True)
                made = [from_local(x, w.shape, w.sharding) for x, w in pairs]
                return jax.tree.unflatten(tree, made)
        raise ValueError(
            f"no argument of {self.module.name!r} has the structure {tree} with"
            f" {[str(_dtype(x)) for x in leaves][:4]}; pass what this process has of a whole"
            " argument"
        )

    def _by_argument(self, leaves: Sequence[Any]) -> ArgumentTrees:
        args, kwargs = jax.tree.unflatten(self._context.in_tree, leaves)
        return args, kwargs

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
        """Reorders train state for a step with a state in an order of its own between calls.

        Steps of `auto_partition(..., skewed_state=True)` have one, and steps of
        `Pipeline(..., staged_state=True)`. Shapes, types and shardings stay. Mutable objects (flax
        nnx) are changed, and returned.

        Args:
          state: an argument of the step in the usual order, with the plan's shapes.

        Raises:
          ValueError: no argument has the structure and shapes of `state`.
        """
        return self._reordered(state, into=True)

    def unskew(self, state: Any) -> Any:
        """Inverse of `skew`, for export, checkpoints and evaluation."""
        return self._reordered(state, into=False)

    def _reordered(self, state: Any, into: bool) -> Any:
        values: tuple[Any, ...] = (state,)
        layers: list[tuple[FrontEnd, SplitArguments]] = []
        for front in claimed(state):
            layers.append((front, front.split(values, ("state",))))
            values = layers[-1][1].arrays
        values = tuple(self._moved(arrays, into) for arrays in values)
        for front, split in reversed(layers):
            values = front.settle(split, values)
        return values[0]

    def _moved(self, state: Any, into: bool) -> Any:
        leaves: list[Any] = jax.tree.leaves(state)
        tree: Any = jax.tree.structure(state)
        args, kwargs = jax.tree.unflatten(self._context.in_tree, range(len(self.module.body.args)))
        for subtree in (*args, *kwargs.values()):
            places = jax.tree.leaves(subtree)
            shapes = [self.module.body.args[i].type.shape for i in places]
            if tree == jax.tree.structure(subtree) and shapes == list(map(np.shape, leaves)):
                reorders = [self._by_stage, self._on_diagonals]
                for reorder in reorders if into else reorders[::-1]:
                    leaves = reorder(places, leaves, into)
                return jax.tree.unflatten(tree, leaves)
        raise ValueError(
            f"no argument of {self.module.name!r} has the structure and shapes of {tree}; pass a"
            " whole argument of the step"
        )

    def _by_stage(self, places: Sequence[int], leaves: Sequence[Any], into: bool) -> list[Any]:
        return reorder_stages(self.module, self.flat_in_shardings(), places, leaves, into)

    def _on_diagonals(self, places: Sequence[int], leaves: Sequence[Any], into: bool) -> list[Any]:
        planned = self._planned
        return reorder_arguments(planned.program, self._context.mesh, places, leaves, into)

    def staged_call(self, step: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Result of a step with a staged state, called with arrays in the layers' order.

        Args:
          step: function of `args` and `kwargs`, in the order of the stages.
          args: the plan's dynamic positional arguments.
          kwargs: the plan's dynamic keyword arguments.
        """
        leaves, tree = jax.tree.flatten((args, kwargs))
        places, ties = range(len(leaves)), self._context.original.ties
        args, kwargs = jax.tree.unflatten(tree, self._by_stage(places, leaves, into=True))
        results, out = jax.tree.flatten(step(*args, **kwargs))
        state = self._by_stage([a for a, _ in ties], [results[r] for _, r in ties], into=False)
        for (_, r), x in zip(ties, state, strict=True):
            results[r] = x
        return jax.tree.unflatten(out, results)

    @property
    def reorders_state(self) -> bool:
        """True if the state of the step is in an order of its own; see `skew`."""
        return self.mesh_shape.skewed_state or bool(self.module.staged.groups)


def _dtype(leaf: Any) -> Any:
    """Type of an array leaf's elements, or the class name of a leaf that is no array."""
    return getattr(leaf, "dtype", type(leaf).__name__)
