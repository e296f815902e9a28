"""Lowers an op with regions: what crosses their borders, and the blocks inside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from partir_search.ir.core import Op
from partir_search.ir.partition import Layout
from partir_search.lowering.cache import Crossing, OpPlan
from partir_search.lowering.codes import picked
from partir_search.lowering.local_ir import Apply
from partir_search.lowering.resting import Resting
from partir_search.lowering.slots import Slot, Source, layout_of
from partir_search.lowering.stopping import stop_alone

SAME_REGION = 64  # plans of one op with regions, at most, that are kept


def _slots(sources: Sequence[Source]) -> tuple[Slot, ...]:
    """Sources none of which is a literal."""
    return cast(tuple[Slot, ...], sources)


def region_plan(of: Resting, op: Op) -> OpPlan:
    """A region's op and the blocks of its regions; in sparse programs, states that tile all
    of it alike share one.
    """
    if of.active is None:
        return _with_blocks(of, op, _crossing(of, op))
    around = of.def_use.contents(op)
    crossing = (op.id, picked(of.resting, around.crossing), of.setting)
    ends = of.cache.crossings.get(crossing)
    if ends is None:
        ends = of.cache.crossings[crossing] = _crossing(of, op)
    key = picked(of.resting, around.inner), picked(of.looping, around.ops), crossing
    kept = of.cache.regions.setdefault(op.id, {})
    plan = kept.get(key)
    if plan is None:
        if len(kept) == SAME_REGION:
            kept.clear()
        plan = kept[key] = _with_blocks(of, op, ends)
    return plan


def _with_blocks(of: Resting, op: Op, ends: Crossing) -> OpPlan:
    blocks = tuple(
        [
            of.block(region, args, targets, results)
            for region, args, targets, results in zip(
                op.regions, ends.args, ends.targets, ends.results, strict=True
            )
        ]
    )
    known, blocks = ends.plan, stop_alone(of.partition, op, blocks)
    apply = Apply(op, known.apply.ins, known.apply.outs, blocks)
    return OpPlan(known.needs, apply, known.moved, known.settles, known.windows)


def _crossing(of: Resting, op: Op) -> Crossing:
    edges = of.partition.rules[op.id].data_flow
    args = [_slots(of.all_resting(region.args)) for region in op.regions]
    results = tuple(of.all_resting(region.results) for region in op.regions)
    needs: list[Layout] = [((),) * len(x.type.shape) for x in op.operands]  # whole predicates
    for i, r, j, stacked in edges.inputs:
        layout = args[r][j].layout
        needs[i] = ((),) * stacked + layout if stacked else layout
    targets = [list(map(layout_of, each)) for each in results]
    rests = _slots(of.all_resting(op.results))
    made = [slot.layout for slot in rests]
    for r, i, out, stacked in edges.outputs:
        layout = made[out]
        targets[r][i] = layout[stacked:] if stacked else layout
        made[out] = ((),) * stacked + layout[stacked:] if stacked else layout
    for r, i, to, j in edges.carries:
        targets[r][i] = args[to][j].layout
    for r, j, out in edges.finals:
        made[out] = args[r][j].layout
    outs = tuple(of.slot(v, layout, ()) for v, layout in zip(op.results, made, strict=True))
    ins = of.all_resting(op.operands)
    moved = tuple(
        i
        for i, (x, layout) in enumerate(zip(ins, needs, strict=True))
        if isinstance(x, Slot) and x.layout != layout
    )
    plan = OpPlan(tuple(needs), Apply(op, ins, outs), moved, outs != rests, {})
    return Crossing(plan, tuple(args), tuple(map(tuple, targets)), results)
