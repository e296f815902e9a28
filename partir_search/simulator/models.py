"""Memory and time models of one module on one machine, composed of the analyses."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from partir_search.ir.analysis.def_use import def_use
from partir_search.ir.core import Module, Region
from partir_search.ir.rule import OpRule
from partir_search.passes.fold.fold import Folded
from partir_search.passes.fold.linear import KeptOps
from partir_search.passes.fold.run_order import RunOrder, run_orders
from partir_search.simulator.arrays import Bools, Floats, Ints
from partir_search.simulator.memory.buffers import Buffers, assign_inner_buffers
from partir_search.simulator.memory.curve import early_curve, early_values, live_curve
from partir_search.simulator.memory.dtypes import assign_dtypes
from partir_search.simulator.memory.model import MemoryModel
from partir_search.simulator.memory.recomputed_reads import recomputed_reads
from partir_search.simulator.memory.region_summaries import (
    curves_inside,
    summarize_folded_regions,
    summarize_regions,
)
from partir_search.simulator.memory.stacks import stack_rows
from partir_search.simulator.memory.tile_padding import tile_padding
from partir_search.simulator.memory.weight_casts import fuse_weight_casts
from partir_search.simulator.printing import table
from partir_search.simulator.program_analysis import ProgramAnalysis
from partir_search.simulator.program_facts import ProgramFacts, program_facts
from partir_search.simulator.target.machine import Machine
from partir_search.simulator.time.alignment import alignment
from partir_search.simulator.time.convolutions import convolution_rates
from partir_search.simulator.time.corrections import Corrections, corrections
from partir_search.simulator.time.fusion import Fusions, fuse
from partir_search.simulator.time.fusion_splits import FusionSplits, find_splits
from partir_search.simulator.time.kernels import (
    Closed,
    Kernels,
    find_folded_kernels,
    find_kernels,
)
from partir_search.simulator.time.layout_copies import LayoutCopies, layout_copies
from partir_search.simulator.time.local_rates import LocalRates
from partir_search.simulator.time.overlap import deferred_runs, hides_gathers
from partir_search.simulator.time.stack_copies import StackCopies, stack_copies
from partir_search.simulator.time.vector_units import VectorWork, vector_work


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class TimeModel:
    """Kernels of a module and their work, valid for every partition.

    Attributes:
      rates: [K] attained matrix rate of each kernel, flops per second.
      copies: between layouts (`time/layout_copies.py`).
      stacks: copies into stacks of scans (`time/stack_copies.py`).
      hides_gathers: [ops] True for an op whose kernel an all_gather may run beside.
      deferred_runs: [ops] runs per step of dots off the critical path (`time/overlap.py`).
      orders: by region, the order in which the original runs the ops.
      corrections: by the machine's profile; None without.
      alignment / convolutions: shares of the rates of products and of convolutions; None where all
        are 1 (`time/alignment.py`, `time/convolutions.py`).
    """

    kernels: Kernels
    rates: Floats
    work: VectorWork
    splits: FusionSplits
    copies: LayoutCopies
    stacks: StackCopies
    hides_gathers: Bools
    deferred_runs: Floats
    orders: Mapping[Region, RunOrder]
    corrections: Corrections | None
    alignment: LocalRates | None
    convolutions: LocalRates | None

    def __str__(self) -> str:
        rows = [
            ("kernels", len(self.kernels.op)),
            ("leading kernels", len(set(self.kernels.leader.tolist()))),
            ("kernels that collectives can split", len(self.splits.kernel)),
            ("dots that can be deferred", int((self.deferred_runs > 0).sum())),
        ]
        return table("TimeModel", ("", "number"), rows)


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Models:
    """Facts, memory model and time model of a module, or of the quotient of a fold."""

    facts: ProgramFacts
    memory: MemoryModel
    time: TimeModel

    def __str__(self) -> str:
        return "\n".join(map(str, (self.facts, self.memory, self.time)))


def model_program(
    module: Module, rules: Sequence[OpRule], machine: Machine, analysis: ProgramAnalysis
) -> Models:
    """Builds the models of a module without a fold.

    Args:
      rules: per op id.
    """
    buffers = analysis.buffers
    class_of: Ints = np.arange(len(module.values))
    kernels = find_kernels(buffers, analysis.fusions, rules)
    counts = np.zeros(len(module.values))
    for v in module.body.args:
        counts[v.id] = 1
    rows, stacks = _stacks(module, rules, kernels, machine)
    facts = program_facts(
        module, rules, analysis.dtypes.for_dots, analysis.off_critical_path, class_of
    )
    width = analysis.dtypes.width
    regions, live = summarize_regions(buffers, machine), buffers.ranges.value
    memory = MemoryModel(
        nbytes=np.array([v.type.nbytes for v in module.values], dtype=np.float64),
        width=width,
        rows=rows,
        curve=live_curve(buffers, machine, inside=curves_inside(module.body, regions.curves)),
        casts=fuse_weight_casts(analysis.weight_casts, live, class_of, len(module.values)),
        regions=regions,
        argument_counts=_with_constants(counts, module),
        live_values=live,
        padding=tile_padding(module, rules, machine.traits, [live, *regions.stored]),
        read_until=(),
        overwritten=buffers.aliases.overwritten,
        wide_forward=analysis.dtypes.wide_forward,
        early=early_curve(buffers, machine, curves_inside(module.body, regions.curves)),
        early_values=frozenset(early_values(buffers)),
    )
    memory = _with_reads(memory, facts, rules)
    orders = run_orders(module)
    return Models(facts, memory, _time_model(facts, rules, kernels, stacks, width, orders, machine))


def model_fold(
    folded: Folded, rules: Sequence[OpRule], machine: Machine, analysis: ProgramAnalysis
) -> Models:
    """Builds the models of a quotient from the analyses of its original.

    Args:
      rules: per op id of the quotient.
      analysis: of the original.
    """
    module, buffers = folded.module, analysis.buffers
    n, traits = len(module.values), machine.traits
    class_of = np.array(folded.class_of)
    closed = _closed_regions(folded, rules, machine)
    kernels = find_folded_kernels(buffers, analysis.fusions, folded, rules, closed)
    known = class_of >= 0
    width, for_dots = np.ones(n), np.zeros(n, dtype=np.bool_)
    if traits.narrows_dot_operands or traits.keeps_dots_wide:
        width[class_of[known]] = analysis.dtypes.width[known]
        for_dots[class_of[known]] = analysis.dtypes.for_dots[known]
    counts = np.zeros(n)
    for v in folded.original.body.args:
        counts[folded.class_of[v.id]] += 1
    rows, stacks = _stacks(module, rules, kernels, machine)
    facts = program_facts(module, rules, for_dots, analysis.off_critical_path, class_of)
    inner = {op: [inside for inside, _ in regions] for op, regions in closed.items()}
    live = class_of[buffers.ranges.value]
    live = live[live >= 0]
    regions = summarize_folded_regions(buffers, folded, rules, inner, machine)
    memory = MemoryModel(
        nbytes=np.array([v.type.nbytes for v in module.values], dtype=np.float64),
        width=width,
        rows=rows,
        curve=live_curve(
            buffers, machine, folded, inside=curves_inside(module.body, regions.curves)
        ),
        casts=fuse_weight_casts(analysis.weight_casts, buffers.ranges.value, class_of, n),
        regions=regions,
        argument_counts=_with_constants(counts, module),
        live_values=live,
        padding=tile_padding(module, rules, traits, [live, *regions.stored]),
        read_until=(),
        overwritten={
            folded.class_of[dot]: (folded.class_of[v], folded.body.op_of[last])
            for dot, (v, last) in buffers.aliases.overwritten.items()
            if folded.class_of[dot] >= 0 and folded.class_of[v] >= 0
        },
        wide_forward=frozenset(folded.class_of[v] for v in analysis.dtypes.wide_forward),
        early=early_curve(buffers, machine, curves_inside(module.body, regions.curves), folded),
        early_values=frozenset(folded.class_of[v] for v in early_values(buffers)),
    )
    memory = _with_reads(memory, facts, rules)
    orders = run_orders(module, folded)
    return Models(facts, memory, _time_model(facts, rules, kernels, stacks, width, orders, machine))


def _with_reads(memory: MemoryModel, facts: ProgramFacts, rules: Sequence[OpRule]) -> MemoryModel:
    """Memory model with the last reads of recomputed values."""
    reads = recomputed_reads(facts.module, rules, memory.stored, memory.width)
    return dataclasses.replace(memory, read_until=reads)


def _closed_regions(folded: Folded, rules: Sequence[OpRule], machine: Machine) -> Closed:
    """Buffers and fusions of the regions of a quotient's ops without folded regions."""
    module, traits = folded.module, machine.traits
    found: dict[int, list[tuple[Buffers, Fusions]]] = {}
    if not any(op.regions for op in module.body.ops):
        return found
    dtypes, uses = assign_dtypes(module, rules, traits), def_use(module)

    def visit(region: Region, places: KeptOps) -> None:
        for op, at in zip(region.ops, places.positions, strict=True):
            if at in places.opened:
                for inner, left in zip(op.regions, places.opened[at], strict=True):
                    visit(inner, left)
            elif op.regions:
                regions = assign_inner_buffers(op, rules, uses, dtypes, traits)
                found[op.id] = [(inside, fuse(inside, rules, dtypes, traits)) for inside in regions]

    visit(module.body, folded.body)
    return found


def _stacks(
    module: Module, rules: Sequence[OpRule], kernels: Kernels, machine: Machine
) -> tuple[Floats, StackCopies]:
    """Bytes of a loop's stacks over those of each row, 1 for a copied row, and the copies."""
    rows = stack_rows(module, rules)
    found = stack_copies(module, rules, kernels, rows, machine)
    rows[found.value] = 1.0
    return rows, found


def _with_constants(counts: Floats, module: Module) -> Floats:
    """Adds 1 for each constant of a module to [values] counts, in place."""
    for v_id in module.constants:
        counts[v_id] += 1
    return counts


def _time_model(
    facts: ProgramFacts,
    rules: Sequence[OpRule],
    kernels: Kernels,
    stacks: StackCopies,
    width: Floats,
    orders: Mapping[Region, RunOrder],
    machine: Machine,
) -> TimeModel:
    """Builds the time model of a module's or quotient's kernels."""
    rates = np.array([machine.matmul_flops_per_s(d) for d in kernels.dtype])
    work = vector_work(facts.module, rules, kernels, width, machine)
    leaders = dict(zip(kernels.op.tolist(), kernels.op[kernels.leader].tolist(), strict=True))
    deferred = deferred_runs(facts, leaders, machine)
    splits = find_splits(facts.module, rules, kernels)
    corrected = corrections(facts.module, rules, kernels, machine.profile)
    hides = hides_gathers(facts, machine)
    copies = layout_copies(facts.module, rules, kernels, machine.traits)
    aligned = alignment(facts.module, rules, kernels, machine.traits)
    return TimeModel(
        kernels=kernels,
        rates=rates,
        work=work,
        splits=splits,
        copies=copies,
        stacks=stacks,
        hides_gathers=hides,
        deferred_runs=deferred,
        orders=orders,
        corrections=corrected,
        alignment=aligned,
        convolutions=convolution_rates(facts.module, rules, kernels, machine.traits),
    )
