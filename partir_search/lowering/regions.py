"""Lowering of ops with regions: layouts at the borders, and the regions inside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from partir_search.ir.core import Op
from partir_search.ir.partition import Layout, Partial
from partir_search.lowering.cache import OpPlan, RegionBoundary
from partir_search.lowering.codes import codes_at
from partir_search.lowering.home_layouts import HomeLayouts
from partir_search.lowering.local_ir import LocalOp
from partir_search.lowering.local_value import LocalValue, Source, layout_of
from partir_search.lowering.stopping import stop_per_device

MAX_REGION_PLANS = 64  # cached plans per op with regions


def _local_values(sources: Sequence[Source]) -> tuple[LocalValue, ...]:
    """Sources without literals, as local values."""
    return cast(tuple[LocalValue, ...], sources)


def region_plan(owner: HomeLayouts, op: Op) -> OpPlan:
    """Plan of an op with regions, regions included.

    Sparse programs share one plan among partitions with equal codes of all values and ops inside.
    """
    if owner.active is None:
        return _with_regions(owner, op, _crossing(owner, op))
    around = owner.def_use.contents(op)
    crossing = (op.id, codes_at(owner.home_codes, around.crossing), owner.setting)
    ends = owner.cache.region_boundaries.get(crossing)
    if ends is None:
        ends = owner.cache.region_boundaries[crossing] = _crossing(owner, op)
    key = codes_at(owner.home_codes, around.inner), codes_at(owner.loop_codes, around.ops), crossing
    kept = owner.cache.regions.setdefault(op.id, {})
    plan = kept.get(key)
    if plan is None:
        if len(kept) == MAX_REGION_PLANS:
            kept.clear()
        plan = kept[key] = _with_regions(owner, op, ends)
    return plan


def _with_regions(owner: HomeLayouts, op: Op, ends: RegionBoundary) -> OpPlan:
    regions = tuple(
        [
            owner.local_region(region, args, targets, results)
            for region, args, targets, results in zip(
                op.regions, ends.args, ends.targets, ends.results, strict=True
            )
        ]
    )
    known, regions = ends.plan, stop_per_device(owner.partition, op, regions)
    local_op = LocalOp(op, known.local_op.ins, known.local_op.outs, regions)
    return OpPlan(known.needs, local_op, known.moved, known.reshards_results, known.windows)


def _crossing(owner: HomeLayouts, op: Op) -> RegionBoundary:
    """Layouts at the borders: both ends of a data-flow edge are tiled alike."""
    edges = owner.partition.rules[op.id].data_flow
    args = [_local_values(owner.all_home(region.args)) for region in op.regions]
    results = tuple(owner.all_home(region.results) for region in op.regions)
    # Operands without a data-flow edge, such as predicates, are replicated.
    needs: list[Layout] = [((),) * len(x.type.shape) for x in op.operands]
    for i, r, j, stacked in edges.inputs:
        layout = args[r][j].layout
        needs[i] = ((),) * stacked + layout if stacked else layout
    targets = [list(map(layout_of, each)) for each in results]
    homes = _local_values(owner.all_home(op.results))
    made = [local.layout for local in homes]
    left: list[Partial] = [()] * len(made)
    for r, i, out, stacked in edges.outputs:
        layout, source = made[out], results[r][i]
        left[out] = source.partial if isinstance(source, LocalValue) else ()
        targets[r][i] = layout[stacked:] if stacked else layout
        made[out] = ((),) * stacked + layout[stacked:] if stacked else layout
    for r, i, to, j in edges.carries:
        targets[r][i] = args[to][j].layout
    for r, j, out in edges.finals:
        made[out], left[out] = args[r][j].layout, args[r][j].partial
    each = zip(op.results, made, left, strict=True)
    outs = tuple(owner.local(v, layout, partial) for v, layout, partial in each)
    ins = owner.all_home(op.operands)
    moved = tuple(
        i
        for i, (x, layout) in enumerate(zip(ins, needs, strict=True))
        if isinstance(x, LocalValue) and x.layout != layout
    )
    plan = OpPlan(tuple(needs), LocalOp(op, ins, outs), moved, outs != homes, {})
    return RegionBoundary(plan, tuple(args), tuple(map(tuple, targets)), results)
