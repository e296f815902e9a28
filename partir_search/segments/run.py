"""A segment as a function under `jax.shard_map`, with shapes and shardings of the arguments."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from partir_search.ir.core import Shape
from partir_search.ir.mesh import MeshShape
from partir_search.lowering.emit import emit_region
from partir_search.lowering.emit_steps import StepRunner, run_step
from partir_search.lowering.local_ir import LocalProgram, LocalRegion
from partir_search.lowering.local_value import LocalValue
from partir_search.lowering.shard_map import (
    named_sharding,
    partition_spec,
    split_mesh,
    without_context,
)
from partir_search.segments.segment import Segment
from partir_search.simulator.target.known_traits import traits_of


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Runnable:
    """A segment to run on a mesh.

    Attributes:
      function: of arrays, one per entering value, to a tuple of the leaving values.
      structs: shapes, types and shardings of the arguments.
      args / results: local values, in the same order.
      specs / result_specs: tilings of the arguments and results on `mesh`.
      mesh: with sub-axes.
    """

    function: Any
    structs: tuple[jax.ShapeDtypeStruct, ...]
    args: tuple[LocalValue, ...]
    results: tuple[LocalValue, ...]
    specs: tuple[PartitionSpec, ...]
    result_specs: tuple[PartitionSpec, ...]
    mesh: Any

    @property
    def jitted(self) -> Any:
        """The function under `jax.jit`."""
        out = tuple(NamedSharding(self.mesh, spec) for spec in self.result_specs)
        return jax.jit(self.function, keep_unused=True, out_shardings=out)


def runnable(segment: Segment, mesh: Any, copy: int | None = None) -> Runnable:
    """A segment as a function on a mesh.

    A value with partial sums has a leading dim over the devices with the summands; a window is part
    of an array of all devices' windows side by side. Values therefore pass from segment to segment
    unchanged.

    Args:
      mesh: `jax.sharding.Mesh` or `AbstractMesh` of the plan's shape.
      copy: number of the copy; the middle one by default.

    Raises:
      ValueError: the segment's program is not scheduled for the mesh's devices.
    """
    program = segment.program
    if program.traits != traits_of(mesh):
        raise ValueError(
            "the segment is scheduled for other devices: take plan.segments(mesh) with the mesh"
            " that segments are to run on"
        )
    body = segment.body if copy is None else segment.copies[copy]
    return region_on(program, body, split_mesh(mesh, program.partition.mesh), mesh)


def region_on(
    program: LocalProgram, body: LocalRegion, mesh: Any, user: Any, step: StepRunner = run_step
) -> Runnable:
    """A region of a program as a function.

    Args:
      mesh: mesh to run on, with sub-axes and the plan's shape, or of one device.
      user: the user's mesh.
      step: runs a reshard step on a tile.
    """
    shape = program.partition.mesh
    args = tuple(body.args)
    results = tuple(x for x in body.results if isinstance(x, LocalValue))
    summed_in = [_summed(x) for x in args]
    summed_out = [_summed(x) for x in results]
    run_region = emit_region(
        program,
        dataclasses.replace(body, results=results),
        lambda layout: named_sharding(user, shape, partition_spec(shape, layout, user=True)),
        step,
    )

    def run(*tiles: Any) -> tuple[Any, ...]:
        inner = [x[0] if axes else x for x, axes in zip(tiles, summed_in, strict=True)]
        outs = run_region(inner)
        return tuple(
            jnp.expand_dims(x, 0) if axes else x for x, axes in zip(outs, summed_out, strict=True)
        )

    specs = tuple(_spec(shape, x) for x in args)
    result_specs = tuple(_spec(shape, x) for x in results)
    function = without_context(
        jax.shard_map(run, mesh=mesh, in_specs=specs, out_specs=result_specs, check_vma=False)
    )
    sizes = dict(mesh.shape)
    structs = tuple(
        jax.ShapeDtypeStruct(
            global_shape(x, spec, sizes), x.value.type.dtype, sharding=NamedSharding(mesh, spec)
        )
        for x, spec in zip(args, specs, strict=True)
    )
    return Runnable(function, structs, args, results, specs, result_specs, mesh)


def _summed(x: LocalValue) -> tuple[int, ...]:
    """Mesh axes over which a local value is a partial sum."""
    return tuple(axis for axis, _ in x.partial)


def _spec(shape: MeshShape, x: LocalValue) -> PartitionSpec:
    spec = partition_spec(shape, x.layout)
    axes = _summed(x)
    return PartitionSpec(tuple(shape.names[a] for a in axes), *spec) if axes else spec


def global_shape(x: LocalValue, spec: PartitionSpec, sizes: dict[str, int]) -> Shape:
    """Shape of the array of all devices' tiles.

    Args:
      spec: of the array, with a leading dim for partial sums.
      sizes: of mesh axes.
    """
    tile = (1, *x.shape) if x.partial else x.shape
    entries: Sequence[Any] = (*spec, *[None] * (len(tile) - len(spec)))
    return tuple(
        n * math.prod(sizes[a] for a in _names(e)) for n, e in zip(tile, entries, strict=True)
    )


def _names(entry: Any) -> tuple[str, ...]:
    if entry is None:
        return ()
    return entry if isinstance(entry, tuple) else (entry,)
