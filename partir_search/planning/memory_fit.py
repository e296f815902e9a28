"""Reduction of peak memory: rematerialization, and remedies for a plan over the limit.

Rematerialization is tried before a plan is refused: a plan with all segments of the forward pass
recomputed is searched, then reduced to the fewest segments within the limit. A refusal lists
remedies with figures.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence

from partir_search.ir.core import Module
from partir_search.ir.mesh import MeshShape
from partir_search.mcts.goals import Goal, Spare
from partir_search.messages.wording import amount
from partir_search.passes.remat import Range, find_segments, namesake, rematerialize
from partir_search.plan.facts import PlanFacts
from partir_search.plan.planned import Planned, with_search
from partir_search.plan.remedy import Remedy
from partir_search.planning.planner import Planner
from partir_search.propagation.actions import Action
from partir_search.simulator.cost import Cost
from partir_search.simulator.target.machine import Machine

PROBES = 5  # plans evaluated to find the fewest segments; peaks are nearly linear in the number
MAX_SEGMENT_KINDS = 6  # kinds of segments measured separately
MIN_SECONDS_FRACTION = 1e-6  # of a step, assumed for the recomputation of segments
MAX_DEVICE_FACTOR = 64  # largest mesh tried as a remedy, in multiples of the user's mesh


class DoesNotFit(MemoryError):
    """A plan needs more memory than allowed; the message lists remedies."""


def fit_by_remat(
    module: Module,
    planned: Planned,
    limit: float,
    plan: Callable[[Module, Sequence[Action], Sequence[Goal[Cost]]], Planned],
    replay: Callable[[Module, Sequence[Action]], Planned],
    objective: Callable[[Cost], float],
) -> tuple[Planned, tuple[Range, ...]]:
    """Fits a plan into memory by recomputing segments of the forward pass.

    The search runs with all segments recomputed. A search with fewer segments gives no better
    plans: programs with layers partly recomputed fold badly.

    Args:
      module: the program without recomputation.
      planned: the plan over the limit.
      limit: bytes per device.
      plan: function (module, hints, goals) that plans a rewritten module, with extra starting
        actions and goals.
      replay: function (module, actions) that applies the compatible actions to a rewritten module.
      objective: the quantity minimised by the goals.

    Returns:
      The plan with the fewest recomputed segments within the limit, or the plan with the lowest
        peak if none fits; and its segments.
    """
    segments = find_segments(module)
    if not segments:
        return planned, ()

    def played(actions: Sequence[Action], some: Sequence[Range]) -> Planned:
        rewritten = rematerialize(module, sorted(some))
        known = {v.name for v in rewritten.values}
        return replay(rewritten, [a.renamed(lambda name: namesake(name, known)) for a in actions])

    target_bytes = limit * (1.0 - planned.model.machine.traits.memory_fragmentation_fraction)
    replayed = played(planned.actions, segments)
    if (
        len(replayed.actions) == len(planned.actions)
        and replayed.cost.peak_bytes >= planned.cost.peak_bytes
    ):
        return planned, ()  # the peak is elsewhere: recomputation frees nothing
    spare = _worth(planned.cost, replayed.cost, target_bytes, objective)
    full = plan(rematerialize(module, segments), planned.actions, spare)
    if planned.cost.peak_bytes <= full.cost.peak_bytes:
        return planned, ()
    if full.cost.peak_bytes > target_bytes:
        return full, tuple(segments)

    replay_with = functools.partial(played, full.actions)
    ordered, known = _cheapest_first(module, segments, replay_with)
    known[len(segments)] = full
    best, n = _fewest(lambda n: replay_with(ordered[:n]), known, target_bytes)
    if best is not full:  # the search proved nothing about fewer segments
        reports = tuple(dataclasses.replace(r, proven=False) for r in full.reports)
        best = with_search(best, full, reports)
    return best, tuple(sorted(ordered[:n]))


def _worth(
    without: Cost, with_all: Cost, limit: float, objective: Callable[[Cost], float]
) -> list[Goal[Cost]]:
    """Goals that price memory in a plan with all segments recomputed.

    Such a plan has memory to spare, as fewer segments will be recomputed in the end.

    Args:
      without, with_all: costs of the same decisions with no and with all segments recomputed.
      limit: bytes per device.
      objective: the quantity minimised by the goals.
    """
    freed = without.peak_bytes - with_all.peak_bytes
    spent = objective(with_all) - objective(without)
    return [Spare(limit, spent / freed, spent)] if freed > 0 and spent > 0 else []


def _cheapest_first(
    module: Module, segments: Sequence[Range], plan_with: Callable[[Sequence[Range]], Planned]
) -> tuple[list[Range], dict[int, Planned]]:
    """Segments ordered by bytes freed per second of recomputation (attention usually before MLPs).

    All segments with the same ops form one kind, measured together.

    Returns:
      The ordered segments, and the plans evaluated so far by number of recomputed segments.
    """
    baseline = plan_with(())
    kinds: dict[tuple[str, ...], list[Range]] = {}
    for begin, stop in segments:
        ops = module.body.ops[begin:stop]
        kinds.setdefault(tuple(op.prim for op in ops), []).append((begin, stop))
    groups = [group for group in kinds.values() if len(group) > 1]
    if not 1 < len(groups) <= MAX_SEGMENT_KINDS:
        return list(segments), {0: baseline}

    def worth(tried: Planned) -> float:
        before, after = baseline.cost, tried.cost
        spent = max(after.seconds - before.seconds, MIN_SECONDS_FRACTION * before.seconds)
        return (before.peak_bytes - after.peak_bytes) / spent

    tried = [plan_with(group) for group in groups]
    ranked = sorted(range(len(groups)), key=lambda i: -worth(tried[i]))
    first = ranked[0]
    ordered = list(itertools.chain(*(groups[i] for i in ranked)))
    ordered += [group[0] for group in kinds.values() if len(group) == 1]
    return ordered, {0: baseline, len(groups[first]): tried[first]}


def _fewest(
    plan_with: Callable[[int], Planned], known: Mapping[int, Planned], limit: float
) -> tuple[Planned, int]:
    """Finds the fewest segments whose recomputation fits, by interpolation of peaks.

    Args:
      plan_with: function from a number of segments to a plan.
      known: plans by number of segments, including the plan with all segments, which must fit.
      limit: bytes per device.

    Returns:
      The plan and its number of segments.
    """
    peaks = {count: planned.cost.peak_bytes for count, planned in known.items()}
    least = min(count for count in peaks if peaks[count] <= limit)
    over = max((count for count in peaks if peaks[count] > limit), default=least - 1)
    best, probes = known[least], list[int]()
    for _ in range(PROBES):
        if least - over <= 1:
            break
        ends = over, least
        if len(probes) > 1 and (peaks[probes[-2]] > limit) == (peaks[probes[-1]] > limit):
            ends = probes[-2], probes[-1]  # peaks are piecewise linear: this piece is nearer
        few, many = sorted(ends)
        slope = (peaks[few] - peaks[many]) / (many - few)
        count = few + math.ceil((peaks[few] - limit) / slope) if slope > 0 else least - 1
        probes.append(count := min(max(count, over + 1), least - 1))
        tried = plan_with(count)
        peaks[count] = tried.cost.peak_bytes
        if peaks[count] <= limit:
            best, least = tried, count
        else:
            over = count
    return best, least


def remedies(
    module: Module,
    mesh: MeshShape,
    machine: Machine,
    limit: float,
    cost: Cost,
    *,
    remat: bool,
) -> list[Remedy]:
    """At most three remedies for a step over the memory limit, cheapest first.

    Args:
      module: the traced program.
      mesh: the user's mesh.
      machine: hardware figures.
      limit: bytes per device.
      cost: cost of the plan over the limit.
      remat: True if rematerialization has been tried.
    """
    found = []
    if not remat:
        segments = find_segments(module)
        recomputed = _tightest(rematerialize(module, segments), mesh, machine) if segments else cost
        if recomputed.peak_bytes <= limit:
            what = "let activations be computed again (remat='auto')"
            found.append(Remedy(what, recomputed.peak_bytes, recomputed.seconds))
    other_bytes = cost.peak_bytes - cost.argument_bytes
    batch = _batch(module)
    if batch and cost.argument_bytes < limit:
        smaller = int(batch * (limit - cost.argument_bytes) / other_bytes)
        if 0 < smaller < batch:
            peak = cost.argument_bytes + other_bytes * smaller / batch
            found.append(Remedy(f"a batch of about {smaller} instead of {batch}", peak))
    larger_mesh = _more_devices(module, mesh, machine, limit)
    return [*found, *([larger_mesh] if larger_mesh else [])]


def _batch(module: Module) -> int:
    """Leading dim of the first array argument outside the train state; 0 without one."""
    tied = {i for i, _ in module.ties}
    shapes = [v.type.shape for i, v in enumerate(module.body.args) if i not in tied]
    return next((shape[0] for shape in shapes if len(shape) >= 2), 0) if tied else 0


def _more_devices(module: Module, mesh: MeshShape, machine: Machine, limit: float) -> Remedy | None:
    """Smallest multiple of the mesh with a known strategy within the limit."""
    times = 2
    while times <= MAX_DEVICE_FACTOR:
        for axis in range(len(mesh.names)):
            sizes = tuple(n * times if a == axis else n for a, n in enumerate(mesh.sizes))
            larger = MeshShape(mesh.names, sizes)
            cost = _tightest(module, larger, machine)
            if cost.peak_bytes <= limit:
                what = f"{larger.devices} devices instead of {mesh.devices} (mesh<{larger}>)"
                return Remedy(what, cost.peak_bytes, cost.seconds)
        times *= 2
    return None


def _tightest(module: Module, mesh: MeshShape, machine: Machine) -> Cost:
    """Cost of the known strategy with the lowest peak memory."""
    costs = Planner(module, mesh, machine).known_costs()
    return min((c for _, c in costs), key=lambda c: c.peak_bytes)


def oom_message(limit: float, cost: Cost, found: Sequence[Remedy]) -> str:
    """Message of `DoesNotFit`."""
    lines = [
        f"the step does not fit: the tightest plan found needs {amount(cost.peak_bytes, 4)} on"
        f" a device ({amount(cost.argument_bytes, 4)} of it arguments), the limit is"
        f" {amount(limit, 4)}"
    ]
    lines += [f"  {i}. {remedy}" for i, remedy in enumerate(found, 1)]
    if not found:
        lines.append("  no smaller batch and no mesh of up to 64 times the devices fits either")
    lines.append("pass on_overflow='warn' to run it all the same")
    return "\n".join(lines)


def remedies_of(plan: PlanFacts) -> list[Remedy]:
    """`remedies` for a plan over the memory limit."""
    return remedies(
        plan.original,
        plan.mesh_shape.user,
        plan.machine,
        plan.memory_limit,
        plan.cost,
        remat=bool(plan.remat),
    )
