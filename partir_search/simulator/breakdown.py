"""Cost of a step by kernel and collective, each with the compiler's traits behind its cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set

from partir_search.ir.analysis.def_use import def_use
from partir_search.ir.core import Op
from partir_search.ir.kind import Kind
from partir_search.ir.role import Role
from partir_search.ir.rule import OpRule
from partir_search.lowering.local_ir import LocalOp, LocalProgram, LocalRegion, Reshard, RingReshard
from partir_search.lowering.local_value import LocalValue
from partir_search.lowering.reshard_steps import AllGather, Reduction
from partir_search.simulator.cost import OpCost
from partir_search.simulator.memory.region_summaries import RegionSummaries
from partir_search.simulator.models import TimeModel
from partir_search.simulator.op_kinds import is_reduction, is_tuple_reduction
from partir_search.simulator.program_analysis import ProgramAnalysis
from partir_search.simulator.target.traits import XlaTraits
from partir_search.simulator.time.collective_cost import (
    CollectiveCosts,
    gathers_into_donated,
    sent_payload,
)
from partir_search.simulator.time.fusion import exceeds_accumulator
from partir_search.simulator.time.fusion_splits import split_at_partials
from partir_search.simulator.time.kernels import Kernels
from partir_search.simulator.time.roofline import Roofline


def cost_by_op(
    program: LocalProgram,
    found: Roofline,
    costs: CollectiveCosts,
    regions: RegionSummaries,
    time: TimeModel,
    rules: Sequence[OpRule],
    analysis: ProgramAnalysis | None,
    *,
    with_traits: bool,
) -> tuple[OpCost, ...]:
    """Lists all kernels and collectives of a program, most seconds first.

    Args:
      found: roofline of the program's partition.
      costs: of the program's mesh.
      rules: per op id.
      analysis: of the program's module; None for a quotient.
      with_traits: name the traits of kernels, which takes half of the time.
    """
    rows, partial = list[OpCost](), dict[int, int]()
    for reshard, _ in program.reshards():
        if isinstance(reshard.step, Reduction):
            partial.setdefault(reshard.source.value.id, reshard.source.nbytes)
    seconds_of = found.seconds.copy()
    for kernel, added in split_at_partials(time.splits, time.work, found, partial).seconds.items():
        seconds_of[kernel] += added
    ops, kernels = program.partition.module.ops, time.kernels
    copying = frozenset(kernels.leader[time.stacks.kernel].tolist())
    traits_of = _KernelTraits(program, found, kernels, rules, analysis, copying).of
    figures = (found.flops.tolist(), found.moved.tolist(), seconds_of.tolist())
    columns = zip(kernels.op.tolist(), kernels.times.tolist(), *figures, strict=True)
    for number, (op_id, times, flops, moved, seconds) in enumerate(columns):
        op = ops[op_id]
        name, traits = op.results[0].name, traits_of(number) if with_traits else ()
        rows.append(
            OpCost(
                kind=op.prim,
                value=name,
                source=op.source,
                times=times,
                seconds=seconds,
                flops=flops,
                bytes=moved,
                traits=traits,
            )
        )
    arguments = {local.id for local in _arguments(program.body)}
    for reshard, trips in program.reshards():
        if reshard.step.communicates:
            times, cost = trips * regions.runs(reshard), costs.cost(reshard)
            payload = sent_payload(reshard, costs.facts, costs.machine.traits) * cost.width
            source = reshard.op.source if reshard.op else ""
            row = (
                reshard.step.kind,
                reshard.source.value.name,
                source,
                times,
                cost.seconds * times,
            )
            traits = _reshard_traits(reshard, cost.width, reshard.source.id in arguments, costs)
            rows.append(OpCost(*row, 0.0, payload * times, traits))
    for own, op, trips in program.own_collectives():
        seconds = costs.of_own(own)[0] * trips * op.count
        runs = trips * op.count
        sent = float(own.nbytes) * runs
        rows.append(
            OpCost(
                kind=own.kind,
                value=own.value,
                source=op.source,
                times=runs,
                seconds=seconds,
                flops=0.0,
                bytes=sent,
            )
        )
    return tuple(sorted(rows, key=lambda r: -r.seconds))


def _arguments(body: LocalRegion) -> Iterator[LocalValue]:
    """Arguments of a region and of all regions inside."""
    yield from body.args
    for item in body.steps:
        for inner in item.regions if isinstance(item, LocalOp) else ():
            yield from _arguments(inner)


def _reshard_traits(
    reshard: Reshard, width: float, argument: bool, costs: CollectiveCosts
) -> tuple[str, ...]:
    """Names of the traits on which the cost of a collective depends."""
    traits, kind = costs.machine.traits, reshard.step.kind
    start = traits.async_all_gather
    gather = isinstance(reshard.step, AllGather)
    early = gather and (start == "since_source" or (argument and start != "never"))
    small = sent_payload(reshard, costs.facts, traits) < reshard.payload_bytes
    donated = traits.copies_gather_into_donated and gathers_into_donated(reshard, costs.facts)
    found = {
        "f32_dot_operand_bytes": width != 1.0,
        "collective_copy_factors": bool(traits.collective_copy_factors.get(kind)),
        "gathers_broadcast_sources": small,
        "copies_gather_into_donated": donated,
        "async_all_gather": early,
        "hides_gathers_behind_dots_alone": early and traits.hides_gathers_behind_dots_alone,
        "defers_weight_gradients": traits.defers_weight_gradients
        and not early
        and not isinstance(reshard, RingReshard),
    }
    return tuple(name for name, holds in found.items() if holds)


class _KernelTraits:
    """Names of the traits on which the costs of a program's kernels depend."""

    def __init__(
        self,
        program: LocalProgram,
        found: Roofline,
        kernels: Kernels,
        rules: Sequence[OpRule],
        analysis: ProgramAnalysis | None,
        copying: Set[int],
    ) -> None:
        self._copying = copying  # leading kernels whose results are copied into stacks
        self._module = module = program.partition.module
        self._roofline, self._kernels, self._rules = found, kernels, rules
        self._analysis, self._uses = analysis, def_use(module)
        leaders = enumerate(kernels.leader.tolist())
        self._leads = {leader for k, leader in leaders if leader != k}
        entering = (v.id for op in module.ops if op.regions for _, v in op.inputs())
        self._forced = self._uses.returned.union(entering)

    def of(self, k: int) -> tuple[str, ...]:
        """Names of the traits of kernel `k`, without repeats."""
        return tuple(dict.fromkeys(self._names(k)))

    def _names(self, k: int) -> Iterator[str]:
        """Names of the traits of kernel `k`, perhaps repeated."""
        found, machine = self._roofline, self._roofline.machine
        traits: XlaTraits = machine.traits
        op = self._module.ops[int(self._kernels.op[k])]
        rule, leader, values = (
            self._rules[op.id],
            int(self._kernels.leader[k]),
            self._kernels.values(k),
        )
        if any(found.width[v] < 1.0 for v in values):
            yield "f32_dot_operand_bytes"
        if any(found.width[v] > 1.0 for v in values):
            yield "keeps_dots_wide"
        if any(v in found.padding for v in values):
            yield "tile_lanes"
        if machine.vmem_bytes_per_s:
            largest = machine.vmem_bytes * traits.vmem_resident_fraction
            if any(found.stored_bytes(v) * found.rows[v] <= largest for v in values):
                yield "vmem_resident_fraction"
        if k in self._copying:
            yield "copies_reduced_rows"
        leading_op = self._module.ops[int(self._kernels.op[leader])]
        if self._rules[leading_op.id].contracts and (leader != k or k in self._leads):
            yield "fuses_dot_epilogues"
        if self._rules[op.id].role is Role.SCATTER and traits.materializes_scatter_updates:
            yield "materializes_scatter_updates"
        if rule.kind is Kind.SCATTER and traits.atomic_update_bytes:
            yield "atomic_update_bytes"
        if rule.kind is Kind.ORDER and traits.selection_bytes:
            yield "selection_bytes"
        if rule.contracts and traits.misaligned_product_rate < 1:
            yield "misaligned_product_rate"
        yield from _of_convolution(op, rule, traits)
        if is_reduction(rule) and leader == k and exceeds_accumulator(op, rule, traits):
            yield "max_reduction_accumulator_bytes"
        if is_tuple_reduction(op, rule):
            yield "joins_tuple_reductions"
        if self._analysis is not None:
            yield from self._of_values(op, values, self._analysis, traits)

    def _of_values(
        self, op: Op, values: Sequence[int], analysis: ProgramAnalysis, traits: XlaTraits
    ) -> Iterator[str]:
        """Names of traits by which the compiler stores or fuses a kernel's operands and values."""
        dtypes, rule = analysis.dtypes, self._rules[op.id]
        if any(v in dtypes.materialized for v in values):
            if traits.materializes_dot_operands:
                yield "materializes_dot_operands"
            if traits.materializes_softmax:
                yield from ("materializes_softmax", "min_stored_softmax_keys")
        if any(not dtypes.softmax_in_one_kernel.get(v, True) for v in values):
            yield "min_softmax_contraction_elements"
        operands = [v for _, v in op.inputs()]
        if any(v.id in analysis.weight_casts for v in operands):
            yield "fuses_weight_casts"
        makers = (self._uses.makers[v.id] for v in operands)
        if any(maker and maker.id in dtypes.one_hot for maker in makers):
            yield "fuses_one_hot_updates"
        if not rule.elementwise or op.regions or len(op.results) != 1:
            return
        result = op.results[0].id
        if result in self._forced or result in dtypes.materialized:
            return
        read = [v for v in values if v != result]
        if len(read) > traits.max_fused_inputs:
            yield "max_fused_inputs"
        elif len(self._uses.users[result]) > 1:
            yield "materialize_ratio"


def _of_convolution(op: Op, rule: OpRule, traits: XlaTraits) -> Iterator[str]:
    """Names of traits of the rate of a convolution."""
    if rule.features and traits.half_rate_features:
        yield "half_rate_features"
    holes = 1 if op.backward else rule.image_holes
    if traits.fills_dilated_windows and (holes > 1 or len(set(rule.window_elements)) > 1):
        yield "fills_dilated_windows"
    if rule.unsplit_pixels and traits.full_rate_results:
        yield "full_rate_results"
    if rule.grouped_window and traits.grouped_convolution_bytes:
        yield from ("grouped_convolution_bytes", "grouped_product_bytes")
