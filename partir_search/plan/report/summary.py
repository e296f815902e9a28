"""First lines of a report: reasons for the plan, seconds by cause, bounds, changes."""

from __future__ import annotations

import math
from collections.abc import Iterator

from partir_search.messages.wording import amount, duration, milliseconds, multiples
from partir_search.plan.facts import PlanFacts
from partir_search.plan.measured_share import measured_share
from partir_search.plan.report.cells import local_source, padding_in_words
from partir_search.plan.step_seconds import (
    collective_rows,
    kernel_rows,
    matrix_rate,
    step_seconds,
)
from partir_search.plan.theory_bound import theory_bound
from partir_search.propagation.data_arguments import batched_arguments
from partir_search.propagation.loop_batches import batch_dims

MOST_NAMED = 3  # kinds of kernels and limits in a sentence
SMALL = 0.02  # of a step; smaller shares are not named


def summary(plan: PlanFacts) -> list[tuple[str, str]]:
    """(question, answer) pairs in the order of the report."""
    answers = [
        ("the plan", _figures(plan)),
        ("measured", str(measured_share(plan) or "")),
        ("why this plan", _why(plan)),
        ("what dominates", _dominates(plan)),
        ("what bounds it", _bounds(plan)),
        ("in theory", str(theory_bound(plan)) if plan.cost.seconds else ""),
        ("how far from the best", _distance(plan)),
        ("what would change it most", _change(plan)),
    ]
    return [(question, answer) for question, answer in answers if answer]


def headlines(plan: PlanFacts) -> list[str]:
    """Warnings before all figures: a plan over the limit, or without tilings."""
    return list(_headlines(plan))


def _headlines(plan: PlanFacts) -> Iterator[str]:
    if not plan.fits:
        remedies = "; ".join(map(str, plan.remedies()))
        helps = f" What would help: {remedies}." if remedies else ""
        yield (
            f"The plan does not fit: {amount(plan.peak_bytes)} of"
            f" {amount(plan.memory_limit)}.{helps}"
        )
    devices = plan.mesh_shape.user.devices
    if devices > 1 and tiles_nothing(plan):
        fastest = next((a for a in plan.alternatives if a.cost.collective_seconds), None)
        costs = (
            f" Tiling costs more: the best known strategy, {fastest.name}, takes"
            f" {milliseconds(fastest.cost.seconds)}."
            if fastest
            else ""
        )
        yield f"Nothing is tiled: all {devices} devices compute the same step.{costs}"
    yield from untiled_batch(plan)


def tiles_nothing(plan: PlanFacts) -> bool:
    """True if neither arguments nor interior values are tiled, and nothing is sent."""
    tiled = any(any(spec) for _, _, spec in plan.arguments())
    return (
        not tiled
        and not plan.collectives
        and not any(any(plan.partition.layout(v)) for v in plan.module.values)
    )


def untiled_batch(plan: PlanFacts) -> list[str]:
    """Batch dims of data divided by no axis of the mesh, in a sentence each."""
    user, found = plan.mesh_shape.user, dict[int, str]()
    if user.devices == 1:
        return []
    arguments, data = plan.arguments(), batched_arguments(plan.module)
    for i, dim in batch_dims(plan.module, data).items():
        path, value, spec = arguments[i]
        n = value.type.shape[dim]
        if n < 2 or (len(spec) > dim and spec[dim] is not None):
            continue
        if not any(n % size == 0 for size in plan.mesh_shape.sizes if size > 1):
            found.setdefault(n, f"{f'Dim {dim}' if dim else 'The leading dim'} of {path}")
    return [
        f"{place}, {n}, could not be tiled: no axis of mesh<{user}> divides it;"
        f" {multiples(n, user.devices)} would divide by all {user.devices} devices."
        for n, place in found.items()
    ]


# Answers ----------------------------------------------------------------------------------------


def _figures(plan: PlanFacts) -> str:
    c = plan.cost
    of = f" of {amount(plan.memory_limit)}" if math.isfinite(plan.memory_limit) else ""
    return (
        f"{milliseconds(c.seconds)} a step, of it {milliseconds(c.collective_seconds)} exposed"
        " collectives;"
        f" {amount(c.peak_bytes)}{of} at the peak (simulated on {plan.machine.name})"
    )


def _why(plan: PlanFacts) -> str:
    parts = []
    if not plan.searches:
        parts.append("its decisions were given (a schedule or a saved plan), no search ran")
    elif plan.proven:
        parts.append("every choice was enumerated: no plan of the space costs less")
    if plan.alternatives:
        parts.append(_against_known(plan))
    if plan.confirmed:
        parts.append(f"compiled for {plan.confirmed.target}: {plan.confirmed.why}")
    if plan.basis:
        parts.append(plan.basis.describe(plan.cost.seconds))
    if plan.remat:
        count = f"{len(plan.remat)} segment{'s' if len(plan.remat) > 1 else ''}"
        stored = f" but for {plan.stored_results} stored results" if plan.stored_results else ""
        why = "as the memory requires" if plan.short_of_memory else "in fewer seconds than stored"
        parts.append(f"{count} of the forward pass computed again{stored}, {why}")
    if plan.pipeline and plan.timetable:
        parts.append(
            f"{plan.pipeline}, idle for {plan.timetable.idle_fraction():.0%} of the ticks' seconds"
        )
        if plan.pipeline.staged_state:
            parts.append(_staged(plan))
    elif plan.microbatches > 1:
        parts.append(f"{plan.microbatches} microbatches")
    if plan.pipelines:
        parts.append("tried " + "; ".join(map(str, plan.pipelines)))
    if plan.parallel_iterations > 1:
        parts.append(f"iterations of scans in up to {plan.parallel_iterations} parts")
    if plan.scan_layers:
        parts.append("equal layers as scans, compiled once")
    if plan.padding:
        parts.append(f"padded inside of the program: {padding_in_words(plan.padding)}")
    return "; ".join(parts)


def _staged(plan: PlanFacts) -> str:
    """Text about the arguments by stage, and all moved in every step."""
    groups, edges = plan.module.staged.groups, plan.module.staged.edges
    count = sum(len(g.arguments) for g in groups)
    text = f"{count} arguments hold layers by stage between steps (plan.skew, plan.unskew)"
    if edges:
        text += f"; {len(edges)} of other kinds move in every step, {edges[0]}"
    return text


def _against_known(plan: PlanFacts) -> str:
    fitting = [a for a in plan.alternatives if a.fits]
    if not fitting:
        return "no known strategy fits"
    best = fitting[0]
    ratio = best.cost.seconds / plan.cost.seconds - 1 if plan.cost.seconds else 0.0
    known = f"the best known strategy that fits, {best.name}"
    again = ", with all segments computed again" if best.recomputed == "all" else ""
    if abs(ratio) < 5e-4:
        return f"as fast as {known}{again}"
    word = "faster" if ratio > 0 else "slower"
    share = ratio / (1 + ratio) if ratio > 0 else -ratio
    return f"{share:.1%} {word} than {known} ({milliseconds(best.cost.seconds)}{again})"


def _share(seconds: float, plan: PlanFacts) -> str:
    return f"{seconds / plan.cost.seconds:.0%}" if plan.cost.seconds else "0%"


def _dominates(plan: PlanFacts) -> str:
    kinds: dict[str, float] = {}
    for row in kernel_rows(plan):
        kinds[row.kind] = kinds.get(row.kind, 0.0) + row.seconds
    ranked = sorted(kinds.items(), key=lambda k: -k[1])[:MOST_NAMED]
    parts = [f"{kind} {_share(s, plan)}" for kind, s in ranked if s > SMALL * plan.cost.seconds]
    exposed = plan.cost.collective_seconds
    if exposed > SMALL * plan.cost.seconds:
        worst = collective_rows(plan)[0]
        where = f" at {local_source(worst.source)}" if worst.source else ""
        parts.append(
            f"exposed collectives {_share(exposed, plan)}, most of them {worst.kind} along"
            f" {worst.axes!r}{where} ({duration(worst.exposed)})"
        )
    elif plan.collectives:
        parts.append("collectives are hidden behind compute")
    return ", ".join(parts)


def _bounds(plan: PlanFacts) -> str:
    limits = step_seconds(plan).limits
    named = [(k, s) for k, s in limits.items() if s > SMALL * plan.cost.seconds][: MOST_NAMED + 1]
    if not named:
        return ""
    first, *rest = (f"{name} ({_share(s, plan)})" for name, s in named)
    then = f", then {', '.join(rest)}" if rest else ""
    return f"{first}{then}; {matrix_rate(plan):.1%} of the peak matrix rate is attained"


def _distance(plan: PlanFacts) -> str:
    if plan.bound:
        return str(plan.bound)
    if plan.proven or not plan.searches:
        return ""
    if plan.remat or plan.microbatches > 1:
        return "no bound: none is computed for recomputed segments and microbatches"
    return "no bound: none was computed for this search (episodes, goals or size of the program)"


def _change(plan: PlanFacts) -> str:
    fitting = [c for c in plan.changes if c.fits and c.relative < 1]
    if not fitting:
        return "none of the changes below makes a step faster" if plan.changes else ""
    best = fitting[0]
    return (
        f"{best.what}: {1 - best.relative:.1%} fewer seconds per example,"
        f" {milliseconds(best.seconds)} a step, {amount(best.peak_bytes)} at the peak"
    )
