"""Results in the buffers of donated arguments, and the form of reduce_scatters."""

from __future__ import annotations

import dataclasses
from collections.abc import Set

from partir_search.lowering.local_ir import LocalProgram, LocalRegion, Reshard
from partir_search.lowering.local_value import LocalValue
from partir_search.lowering.reshard_steps import AllGather, ReduceScatter
from partir_search.lowering.scheduling.marks import Marks, mark_regions
from partir_search.lowering.traits import LoweringTraits


def write_donated_last(program: LocalProgram, traits: LoweringTraits) -> LocalProgram:
    """Makes results gathered into the buffer of a donated argument wait for the argument's readers.

    ZeRO's parameters are gathered in this way. Without the dependency XLA:TPU copies the argument
    at the start of the step, as the gather would overwrite the buffer, and keeps the copy alive.
    """
    module, body = program.partition.module, program.body
    gathered = {
        item.target.id
        for item in body.steps
        if isinstance(item, Reshard) and isinstance(item.step, AllGather)
    }
    after: dict[int, LocalValue] = {}
    for argument, result in module.ties:
        source = body.results[result]
        if argument in module.donated and isinstance(source, LocalValue) and source.id in gathered:
            after[result] = body.args[argument]
    return dataclasses.replace(program, results_after=tuple(after.items()))


def scatter_tiles_first(program: LocalProgram, traits: LoweringTraits) -> LocalProgram:
    """Transposes the dim of each reduce_scatter to the front, for
    `LoweringTraits.reduce_scatter_tiles_first`.
    """
    if not traits.reduce_scatter_tiles_first:
        return program

    def find(body: LocalRegion, _: Set[int]) -> Marks:
        return {
            at: {"tiles_first": True}
            for at, item in enumerate(body.steps)
            if isinstance(item, Reshard) and isinstance(item.step, ReduceScatter) and item.step.dim
        }

    return mark_regions(program, find)
