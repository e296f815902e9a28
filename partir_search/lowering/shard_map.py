"""Wraps an emitted program in one `jax.shard_map` over the user's mesh."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from partir_search.ir.mesh import MeshShape
from partir_search.ir.partition import Layout
from partir_search.lowering.diagonals import redistribute, without_diagonals
from partir_search.lowering.emit import emit
from partir_search.lowering.emit_steps import run_step
from partir_search.lowering.local_ir import LocalProgram
from partir_search.lowering.local_value import LocalValue, Source

NO_MESH = AbstractMesh((), ())


def partition_spec(mesh: MeshShape, layout: Layout, *, user: bool = False) -> PartitionSpec:
    """PartitionSpec of a layout, without trailing Nones.

    A tiling on a diagonal has the spec of the same blocks in the array's order.

    Args:
      user: name an axis of the user's mesh in place of all sub-axes of the axis in order.
    """
    entries: list[Any] = []
    for axes in without_diagonals(mesh, layout):
        names = tuple(mesh.names[a] for a in axes)
        if user and names:
            names = tuple(mesh.label(axes).split("+"))
        entries.append(None if not names else names[0] if len(names) == 1 else names)
    while entries and entries[-1] is None:
        entries.pop()
    return PartitionSpec(*entries)


def argument_specs(program: LocalProgram, *, user: bool = False) -> list[PartitionSpec]:
    """Specs of the arguments; see `partition_spec`."""
    mesh = program.partition.mesh
    return [partition_spec(mesh, local.layout, user=user) for local in program.body.args]


def lifted_specs(program: LocalProgram) -> list[PartitionSpec]:
    """Specs of the closed-over arrays passed after the arguments, on the mesh of sub-axes."""
    mesh = program.partition.mesh
    return [partition_spec(mesh, program.constants[i].layout) for i in program.lifted]


def lifted_shardings(program: LocalProgram, mesh: Any) -> list[NamedSharding]:
    """Shardings of the lifted constants, on the user's `mesh` with sub-axes."""
    split = split_mesh(mesh, program.partition.mesh)
    return [NamedSharding(split, spec) for spec in lifted_specs(program)]


def result_specs(program: LocalProgram, *, user: bool = False) -> list[PartitionSpec]:
    """Specs of the results; see `partition_spec`."""
    mesh = program.partition.mesh

    def spec(source: Source) -> PartitionSpec:
        if not isinstance(source, LocalValue):
            return PartitionSpec()
        return partition_spec(mesh, source.layout, user=user)

    return [spec(r) for r in program.body.results]


def split_mesh(mesh: Any, shape: MeshShape) -> Any:
    """The user's `Mesh` or `AbstractMesh` with the sub-axes of `shape`: same devices and order."""
    if tuple(mesh.axis_names) == shape.device_names:
        return mesh
    kinds = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    names, sizes = shape.device_names, shape.device_sizes
    types = tuple(kinds[w] for w in shape.whole[: len(names)])
    if isinstance(mesh, jax.sharding.Mesh):
        return jax.sharding.Mesh(mesh.devices.reshape(sizes), names, axis_types=types)
    return jax.sharding.AbstractMesh(sizes, names, axis_types=types)


def named_sharding(mesh: Any, shape: MeshShape, spec: PartitionSpec) -> NamedSharding:
    """Sharding on the user's mesh if `spec` names only the user's axes, on sub-axes if not."""
    used = {n for entry in spec if entry for n in (entry if isinstance(entry, tuple) else (entry,))}
    return NamedSharding(mesh if used <= set(mesh.axis_names) else split_mesh(mesh, shape), spec)


def sharded(program: LocalProgram, mesh: Any) -> Any:
    """`jax.shard_map` of the whole program over flat arguments, lifted constants and results.

    Args:
      program: program scheduled for the compiler of the mesh's devices (`schedule_for`).
      mesh: `jax.sharding.Mesh` or `AbstractMesh` with the user's axes or with sub-axes. Arguments
        and results on explicit axes of the user are renamed to and from sub-axes, at no cost.
    """
    shape = program.partition.mesh
    split = split_mesh(mesh, shape)

    def sharding(layout: Layout) -> NamedSharding:
        return named_sharding(mesh, shape, partition_spec(shape, layout, user=True))

    mapped = without_context(
        jax.shard_map(
            emit(program, sharding),
            mesh=split,
            in_specs=(*argument_specs(program), *lifted_specs(program)),
            out_specs=tuple(result_specs(program)),
            check_vma=False,
        )
    )
    if split is mesh or AxisType.Explicit not in mesh.axis_types:
        return mapped
    specs = (*argument_specs(program), *lifted_specs(program))
    enter = tuple(NamedSharding(split, s) for s in specs)
    leave = tuple(named_sharding(mesh, shape, s) for s in result_specs(program, user=True))

    def renamed(*args: Any) -> Any:
        return jax.device_put(mapped(*jax.device_put(args, enter)), leave)

    return without_context(renamed)


def without_context(fun: Callable[..., Any]) -> Callable[..., Any]:
    """`fun` traced outside of `jax.set_mesh`: inside, jax refuses every mesh except the set one."""

    @functools.wraps(fun)
    def run(*args: Any, **kwargs: Any) -> Any:
        with jax.sharding.use_abstract_mesh(NO_MESH):
            return fun(*args, **kwargs)

    return run


def reorder_arguments(
    program: LocalProgram, mesh: Any, arguments: Sequence[int], values: Sequence[Any], into: bool
) -> list[Any]:
    """Arguments with blocks permuted between the array's order and the program's.

    Args:
      arguments: positions of the arguments.
      values: arrays, one per position.
      into: True to permute to the program's order, False to permute back.
    """
    shape = program.partition.mesh
    moves = []
    for i in arguments:
        layout = program.body.args[i].layout
        ends = (without_diagonals(shape, layout), layout)
        begin, end = ends if into else ends[::-1]
        moves.append(redistribute(shape, begin, (), end))

    def run(*blocks: Any) -> tuple[Any, ...]:
        out = []
        for block, steps in zip(blocks, moves, strict=True):
            for step in steps:
                block = run_step(shape, step, block)
            out.append(block)
        return tuple(out)

    specs = tuple(argument_specs(program)[i] for i in arguments)
    split = split_mesh(mesh, shape)
    mapped = jax.shard_map(run, mesh=split, in_specs=specs, out_specs=specs, check_vma=False)
    placed = [
        jax.device_put(v, NamedSharding(split, s)) for v, s in zip(values, specs, strict=True)
    ]
    return list(jax.jit(without_context(mapped))(*placed))
