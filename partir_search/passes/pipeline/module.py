"""Rewrite of a module: the loop over microbatches becomes a pipeline over stages of layers."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable
from typing import Any

from partir_search.ir.core import Literal, Module, Op, Region, Value
from partir_search.ir.from_jaxpr import FunctionReader
from partir_search.ir.numbering import number
from partir_search.ir.pipeline_schedule import PipelineSchedule
from partir_search.ir.pipeline_table import pipeline_table
from partir_search.ir.rewriter import RegionRewriter
from partir_search.ir.staged_state import IN_LAYERS_ORDER, LayerOrder
from partir_search.passes.fresh_names import name_apart
from partir_search.passes.pipeline.carried_rows import with_carried_rows
from partir_search.passes.pipeline.chain import Chain
from partir_search.passes.pipeline.chain_parts import ChainParts, chain_parts
from partir_search.passes.pipeline.early_casts import early_casts, types_of_totals
from partir_search.passes.pipeline.invariant_carries import with_invariant_carries
from partir_search.passes.pipeline.late_ops import by_results
from partir_search.passes.pipeline.lockstep import Lockstep
from partir_search.passes.pipeline.loop_parts import (
    LoopParts,
    NoPipeline,
    layer_pairs,
    loop_parts,
    microbatch_loop,
    named,
    too_empty,
)
from partir_search.passes.pipeline.staged_state import staged_state
from partir_search.passes.pipeline.summed_rows import with_summed_rows
from partir_search.passes.pipeline.tick_loops import TickLoop, read_ticks
from partir_search.rules.control_flow import ACCUMULATES, STAGED, TICKS


def pipelined(
    module: Module, schedule: PipelineSchedule, ruled: Iterable[str], *, staged: bool = False
) -> Module:
    """Module with its loop over microbatches run as a pipeline, equal to `module`.

    Args:
      module: a module with a loop over as many microbatches as `schedule` has.
      ruled: primitives kept as ops.
      staged: arguments and results of layers are by stage, as `Module.staged` says.

    Raises:
      NoPipeline: the loop has no stack of layers that the stages divide.
    """
    at, loop = microbatch_loop(module)
    rest = module.body.ops[at + 1 :]
    ids = itertools.count(len(module.values))
    carried, loop = with_invariant_carries(with_summed_rows(module, loop, ids), ids)
    loop = with_carried_rows(loop, layer_pairs(loop.regions[0]))
    pairs = layer_pairs(loop.regions[0])
    parts = loop_parts(loop) if len(pairs) == 1 else chain_parts(loop, pairs)
    stacks = parts.stacks if isinstance(parts, ChainParts) else (parts,)
    for stack in stacks:
        _check_layers(stack, schedule)
    state, orders = IN_LAYERS_ORDER, dict[Value, LayerOrder]()
    if staged:
        state, orders = staged_state(module, loop, stacks, schedule)
    casts = early_casts(module, module.body.ops[at])
    types = types_of_totals(loop, casts)
    reader = FunctionReader(ruled)
    copy = RegionRewriter()
    args = tuple(map(copy.value, module.body.args))
    before = [copy.op(op) for op in (*module.body.ops[:at], *carried)]
    constants = [module.values[i] for i in module.constants]
    operands = [copy.operand(x) for x in loop.operands]
    lockstep_operands = [*map(copy.value, constants), *operands]

    def run(*arrays: Any) -> tuple[list[Any], list[TickLoop]]:
        outer, own = dict(zip(constants, arrays, strict=False)), arrays[len(constants) :]
        ticks: Lockstep | Chain
        if isinstance(parts, LoopParts):
            ticks = Lockstep(parts, pipeline_table(schedule), outer, orders, types)
        else:
            ticks = Chain(parts, schedule, outer, orders, types)
        return ticks(*own), ticks.loops

    ops, results, last = read_ticks(reader, run, lockstep_operands)
    for value in stage_carries(ops):
        value.name = "pipeline.state"
    for old, made in zip(loop.results, results, strict=True):
        if isinstance(made, Literal):
            raise NoPipeline(f"%{old.name} is a constant")
        copy.new[casts[old].results[0] if old in casts else old] = made
    done = {id(op) for op in casts.values()}
    following = [copy.op(op) for op in rest if id(op) not in done]
    returned = tuple(map(copy.operand, module.body.results))
    late = by_results([*ops[last:], *following], returned)
    held: dict[int, tuple[Value, Any]] = {
        id(a): (copy.value(module.values[i]), a) for i, a in module.constants.items()
    }
    new = dataclasses.replace(
        module,
        body=Region(args, (*before, *ops[:last], *late), returned),
        values=[],
        ops=[],
        constants={},
        staged=state,
    )
    number(new, held | reader.constants)
    name_apart(new)
    return new


def stage_carries(ops: Iterable[Op]) -> list[Value]:
    """Values with a dim of stages at first: carries of the first tick, and empty slots.

    Without a pipeline, none. Of several stacks of layers and of a split backward pass, the values
    before each loop over ticks.
    """
    carries: list[Value] = []
    for op in ops:
        if op.params.get(ACCUMULATES) == TICKS:
            first = int(op.params["num_consts"])
            count = int(op.params.get(STAGED, op.params["num_carry"]))
            carries += [x for x in op.operands[first : first + count] if isinstance(x, Value)]
            if STAGED not in op.params:
                break
    return list(dict.fromkeys(carries))


def _check_layers(parts: LoopParts, schedule: PipelineSchedule) -> None:
    """Raises NoPipeline if over a third of the places of layers in stages would be empty."""
    count, cuts = parts.forward.count, schedule.stages * schedule.chunks
    if too_empty(count, cuts):
        chunks = f" of {schedule.chunks} chunks" if schedule.chunks > 1 else ""
        raise NoPipeline(
            f"{schedule.stages} stages{chunks} are too many for the {count} layers at"
            f" {named(parts.forward.op)}"
        )
    if parts.microbatches != schedule.microbatches:
        raise NoPipeline(f"the loop has {parts.microbatches} microbatches")
