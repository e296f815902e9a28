"""Record of emission: the jaxpr of a plan's program."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import jax

from partir_search.lowering.local_ir import LocalProgram
from partir_search.lowering.scheduling.schedule import schedule_for
from partir_search.lowering.shard_map import sharded
from partir_search.plan.pass_record import PassRecord
from partir_search.simulator.target.known_traits import traits_of


def emission(program: LocalProgram, mesh: Any) -> PassRecord:
    """Traces a program as jax for the devices of a mesh.

    Returns:
      Record of the trace. Its ops before are instructions, its ops after equations, both with those
      of regions.
    """
    module = program.partition.module
    values = [*module.body.args, *(module.values[i] for i in program.lifted)]
    structs = [jax.ShapeDtypeStruct(v.type.shape, v.type.dtype) for v in values]
    begin = time.perf_counter()
    mapped = sharded(schedule_for(program, traits_of(mesh)), mesh)
    jaxpr = jax.make_jaxpr(mapped)(*structs)
    seconds = time.perf_counter() - begin
    count = sum(1 for _ in _equations(jaxpr.jaxpr))
    return PassRecord("emit", seconds, program.size, count, lambda: str(jaxpr))


def _equations(jaxpr: Any) -> Iterator[Any]:
    """Equations of a jaxpr and of the jaxprs in their parameters."""
    for equation in jaxpr.eqns:
        yield equation
        for leaf in jax.tree.leaves(list(equation.params.values()), is_leaf=_is_jaxpr):
            if _is_jaxpr(leaf):
                yield from _equations(getattr(leaf, "jaxpr", leaf))


def _is_jaxpr(x: Any) -> bool:
    return hasattr(x, "eqns")
