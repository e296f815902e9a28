"""Programs of plans compiled ahead of time: in full, or up to the buffer assignment."""

from __future__ import annotations

import pathlib
import tempfile
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding

from partir_search.aot.process import NOT_GIVEN, CompiledProgram, scheduled
from partir_search.aot.targets import TPUS, Target
from partir_search.ir.core import Module
from partir_search.lowering.local_ir import LocalProgram
from partir_search.lowering.scheduling.schedule import schedule_for
from partir_search.lowering.shard_map import argument_specs, lifted_specs, result_specs, sharded
from partir_search.simulator.target.known_traits import traits_of


def compiled_program(
    program: LocalProgram, mesh: Mesh, target: Target, *, cycles: bool = False
) -> CompiledProgram:
    """Figures of a program compiled for a target.

    Compilation for TPUs ends before code generation unless cycles or flops are needed.

    Args:
      cycles: generate code, which takes ten times as long or more.

    Raises:
      jax.errors.JaxRuntimeError: XLA refuses the program (out of memory, for example).
    """
    if target.name in TPUS and not cycles:
        donated = tuple(sorted(program.partition.module.donated))
        early = scheduled(*jitted_for(program, mesh), donated, target, mesh)
        if early is not None:
            return early
    compiled, text = _compile(program, mesh, target)
    memory, analysis = compiled.memory_analysis(), compiled.cost_analysis() or {}
    return CompiledProgram(
        text=text,
        peak_bytes=memory.peak_memory_in_bytes,
        argument_bytes=memory.argument_size_in_bytes,
        flops=analysis.get("flops", NOT_GIVEN),
        complete=True,
        temp_bytes=memory.temp_size_in_bytes,
    )


def _compile(program: LocalProgram, mesh: Mesh, target: Target) -> tuple[Any, str]:
    """Compiled program and its text.

    jaxlib cannot print some programs of libtpu for v5p (gathers on the SparseCore); their text is
    read from the compiler's dump.
    """
    if target.name not in TPUS:
        compiled = compile_for(program, mesh, target.compiler_options)
        return compiled, compiled.as_text()
    with tempfile.TemporaryDirectory() as folder:
        compiled = compile_for(program, mesh, target.compiler_options | {"xla_dump_to": folder})
        try:
            return compiled, compiled.as_text()
        except jax.errors.JaxRuntimeError:
            found = sorted(pathlib.Path(folder).glob("*.jit_run.*.after_codegen.txt"))
            if not found:
                raise
            return compiled, found[-1].read_text()


def compile_for(program: LocalProgram, mesh: Mesh, options: dict[str, Any] | None = None) -> Any:
    """`jax.stages.Compiled` of the program over flat arguments on `mesh`."""
    jitted, structs = jitted_for(program, mesh)
    return jitted.lower(*structs).compile(compiler_options=options or None)


def jitted_for(program: LocalProgram, mesh: Mesh) -> tuple[Any, list[jax.ShapeDtypeStruct]]:
    """The program over flat arguments under `jax.jit` on `mesh`, and its arguments."""
    module: Module = program.partition.module
    results = tuple(NamedSharding(mesh, s) for s in result_specs(program))
    jitted = jax.jit(
        sharded(schedule_for(program, traits_of(mesh)), mesh),
        donate_argnums=tuple(sorted(module.donated)),
        keep_unused=True,
        out_shardings=results,
    )
    values = [*module.body.args, *(module.values[i] for i in program.lifted)]
    specs = [*argument_specs(program), *lifted_specs(program)]
    structs = [
        jax.ShapeDtypeStruct(v.type.shape, v.type.dtype, sharding=NamedSharding(mesh, s))
        for v, s in zip(values, specs, strict=True)
    ]
    return jitted, structs
