"""Lowers an op with regions: what crosses their borders, and the blocks inside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from partir_search.ir.core import Op
from partir_search.ir.partition import Layout
from partir_search.lowering.cache import Crossing, OpPlan
from partir_search.lowering.codes import picked
from partir_search.lowering.home_layouts import HomeLayouts
from partir_search.lowering.local_ir import LocalOp
from partir_search.lowering.local_value import LocalValue, Source, layout_of
from partir_search.lowering.stopping import stop_alone

SAME_REGION = 64  # plans of one op with regions, at most, that are kept


def _local_values(sources: Sequence[Source]) -> tuple[LocalValue, ...]:
    """Sources none of which is a literal."""
    return cast(tuple[LocalValue, ...], sources)


def region_plan(of: HomeLayouts, op: Op) -> OpPlan:
    """A region's op and the blocks of its regions; in sparse programs, states that tile all
    of it alike share one.
    """
    if of.active is None:
        return _with_blocks(of, op, _crossing(of, op))
    around = of.def_use.contents(op)
    crossing = (op.id, picked(of.home_codes, around.crossing), of.setting)
    ends = of.cache.crossings.get(crossing)
    if ends is None:
        ends = of.cache.crossings[crossing] = _crossing(of, op)
    key = picked(of.home_codes, around.inner), picked(of.loop_codes, around.ops), crossing
    kept = of.cache.regions.setdefault(op.id, {})
    plan = kept.get(key)
    if plan is None:
        if len(kept) == SAME_REGION:
            kept.clear()
        plan = kept[key] = _with_blocks(of, op, ends)
    return plan


def _with_blocks(of: HomeLayouts, op: Op, ends: Crossing) -> OpPlan:
    blocks = tuple(
        [
            of.block(region, args, targets, results)
            for region, args, targets, results in zip(
                op.regions, ends.args, ends.targets, ends.results, strict=True
            )
        ]
    )
    known, blocks = ends.plan, stop_alone(of.partition, op, blocks)
    apply = LocalOp(op, known.local_op.ins, known.local_op.outs, blocks)
    return OpPlan(known.needs, apply, known.moved, known.reshards_results, known.windows)


def _crossing(of: HomeLayouts, op: Op) -> Crossing:
    edges = of.partition.rules[op.id].data_flow
    args = [_local_values(of.all_home(region.args)) for region in op.regions]
    results = tuple(of.all_home(region.results) for region in op.regions)
    needs: list[Layout] = [((),) * len(x.type.shape) for x in op.operands]  # whole predicates
    for i, r, j, stacked in edges.inputs:
        layout = args[r][j].layout
        needs[i] = ((),) * stacked + layout if stacked else layout
    targets = [list(map(layout_of, each)) for each in results]
    homes = _local_values(of.all_home(op.results))
    made = [local.layout for local in homes]
    for r, i, out, stacked in edges.outputs:
        layout = made[out]
        targets[r][i] = layout[stacked:] if stacked else layout
        made[out] = ((),) * stacked + layout[stacked:] if stacked else layout
    for r, i, to, j in edges.carries:
        targets[r][i] = args[to][j].layout
    for r, j, out in edges.finals:
        made[out] = args[r][j].layout
    outs = tuple(of.local(v, layout, ()) for v, layout in zip(op.results, made, strict=True))
    ins = of.all_home(op.operands)
    moved = tuple(
        i
        for i, (x, layout) in enumerate(zip(ins, needs, strict=True))
        if isinstance(x, LocalValue) and x.layout != layout
    )
    plan = OpPlan(tuple(needs), LocalOp(op, ins, outs), moved, outs != homes, {})
    return Crossing(plan, tuple(args), tuple(map(tuple, targets)), results)
