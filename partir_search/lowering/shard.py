"""Wraps an emitted program in one `jax.shard_map` over the user's mesh."""

from __future__ import annotations

from typing import Any

import jax
from jax.sharding import PartitionSpec

from partir_search.ir.mesh import MeshShape
from partir_search.ir.partition import Layout
from partir_search.lowering.emit import emit
from partir_search.lowering.program import LocalProgram, Slot, Source


def partition_spec(mesh: MeshShape, layout: Layout) -> PartitionSpec:
    """Layout to PartitionSpec, without trailing Nones."""
    entries: list[Any] = []
    for axes in layout:
        names = tuple(mesh.names[a] for a in axes)
        entries.append(None if not names else names[0] if len(names) == 1 else names)
    while entries and entries[-1] is None:
        entries.pop()
    return PartitionSpec(*entries)


def argument_specs(program: LocalProgram) -> list[PartitionSpec]:
    mesh = program.partition.mesh
    return [partition_spec(mesh, slot.layout) for slot in program.body.args]


def result_specs(program: LocalProgram) -> list[PartitionSpec]:
    mesh = program.partition.mesh

    def spec(source: Source) -> PartitionSpec:
        return partition_spec(mesh, source.layout) if isinstance(source, Slot) else PartitionSpec()

    return [spec(r) for r in program.body.results]


def _platform(mesh: Any) -> str | None:
    """The platform of the mesh's devices; None for an `AbstractMesh`."""
    return str(mesh.devices.flat[0].platform) if isinstance(mesh, jax.sharding.Mesh) else None


def sharded(program: LocalProgram, mesh: Any) -> Any:
    """`jax.shard_map` of the whole program over flat global arguments and results.

    Args:
      mesh: a `jax.sharding.Mesh` or `AbstractMesh` with the plan's axes.
    """
    return jax.shard_map(
        emit(program, tiles_first=_platform(mesh) == "cpu"),
        mesh=mesh,
        in_specs=tuple(argument_specs(program)),
        out_specs=tuple(result_specs(program)),
        check_vma=False,
    )
