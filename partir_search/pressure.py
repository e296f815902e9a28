"""When a step does not fit in memory: computing parts of it again, and what else would help.

Rematerialisation is tried before a plan is refused: a plan for all segments of the forward pass is
searched, and then has as few of them computed again as the limit allows. What is refused comes with
remedies and their figures.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

from partir_search.cost.simulator import Cost
from partir_search.ir.core import Module
from partir_search.ir.mesh import MeshShape
from partir_search.ir.remat import Range, find_segments, namesake, rematerialize
from partir_search.machine import Machine
from partir_search.planned import Planned
from partir_search.planner import Planner
from partir_search.propagation.actions import Action, renamed

PROBES = 4  # numbers of segments at which a plan is costed; peaks fall nearly on a line
MOST_DEVICES = 64  # times as many, at most, are tried as a remedy


class DoesNotFit(MemoryError):
    """A plan needs more memory than the machine has; the message holds remedies."""


@dataclasses.dataclass(frozen=True, slots=True)
class Remedy:
    """Something that would make a step fit.

    Attributes:
      what: in words, with figures.
      peak_bytes / seconds: of the plan that fits with it; seconds 0 where it was not planned.
    """

    what: str
    peak_bytes: float
    seconds: float = 0.0

    def __str__(self) -> str:
        cost = f", {self.seconds * 1e3:.1f} ms a step" if self.seconds else ""
        return f"{self.what}: {self.peak_bytes / 1e9:.2f} GB{cost}"


def relieve(
    module: Module,
    planned: Planned,
    limit: float,
    plan: Callable[[Module, Sequence[Action]], Planned],
    replay: Callable[[Module, Sequence[Action]], Planned],
) -> tuple[Planned, tuple[Range, ...]]:
    """A plan that fits by computing segments again, or the tightest one, and those segments.

    A search for fewer than all segments is no help: programs in which some layers are run again and
    some not fold badly, and what it found was slower in all cases tried than the same decisions.

    Args:
      planned: what does not fit.
      plan: plans a rewritten module as `module` was planned, starting from a plan's actions too.
      replay: what a plan's actions, as many as it admits, make of a rewritten module.
    """
    segments = find_segments(module)
    if not segments:
        return planned, ()
    every = plan(rematerialize(module, segments), planned.actions)
    if planned.cost.peak_bytes <= every.cost.peak_bytes:
        return planned, ()
    if every.cost.peak_bytes > limit:
        return every, tuple(segments)

    def at(n: int) -> Planned:
        some = rematerialize(module, segments[:n])
        known = {v.name for v in some.values}
        return replay(some, [renamed(a, lambda name: namesake(name, known)) for a in every.actions])

    few, n = _fewest(at, every, len(segments), limit)
    if few is not every:  # of which nothing was proven
        reports = tuple(dataclasses.replace(r, proven=False) for r in every.reports)
        few = dataclasses.replace(few, reports=reports, seconds=every.seconds)
    return few, tuple(segments[:n])


def _fewest(
    at: Callable[[int], Planned], every: Planned, most: int, limit: float
) -> tuple[Planned, int]:
    """The plan with the fewest segments that fits, found between two points of a line each time."""
    best, least, over = every, most, 0
    peak = at(0).cost.peak_bytes
    for _ in range(PROBES):
        if peak <= limit or least - over <= 1:
            break
        slope = (peak - best.cost.peak_bytes) / (least - over)
        n = over + math.ceil((peak - limit) / slope) if slope > 0 else least - 1
        tried = at(n := min(max(n, over + 1), least - 1))
        if tried.cost.peak_bytes <= limit:
            best, least = tried, n
        else:
            peak, over = tried.cost.peak_bytes, n
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
    """At most three ways to make a step fit that needs `cost`, the cheapest first.

    Args:
      mesh: the user's.
      remat: whether rematerialisation was part of what was tried.
    """
    found = []
    if not remat:
        segments = find_segments(module)
        again = _tightest(rematerialize(module, segments), mesh, machine) if segments else cost
        if again.peak_bytes <= limit:
            what = "let activations be computed again (remat='auto')"
            found.append(Remedy(what, again.peak_bytes, again.seconds))
    moving = cost.peak_bytes - cost.argument_bytes
    batch = _batch(module)
    if batch and cost.argument_bytes < limit:
        smaller = int(batch * (limit - cost.argument_bytes) / moving)
        if 0 < smaller < batch:
            peak = cost.argument_bytes + moving * smaller / batch
            found.append(Remedy(f"a batch of about {smaller} instead of {batch}", peak))
    more = _more_devices(module, mesh, machine, limit)
    return [*found, *([more] if more else [])]


def _batch(module: Module) -> int:
    """Leading dim of the first argument that is no train state; 0 if there is none."""
    tied = {i for i, _ in module.ties}
    shapes = [v.type.shape for i, v in enumerate(module.body.args) if i not in tied]
    return next((shape[0] for shape in shapes if len(shape) >= 2), 0) if tied else 0


def _more_devices(module: Module, mesh: MeshShape, machine: Machine, limit: float) -> Remedy | None:
    """The smallest multiple of the mesh on which a known strategy fits."""
    times = 2
    while times <= MOST_DEVICES:
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
    """Cost of the known strategy that needs the least memory."""
    costs = Planner(module, mesh, machine).known_costs()
    return min((c for _, c in costs), key=lambda c: c.peak_bytes)


def refusal(limit: float, cost: Cost, ways: Sequence[Remedy]) -> str:
    """The message of `DoesNotFit`."""
    lines = [
        f"the step does not fit: the tightest plan found needs {cost.peak_bytes / 1e9:.2f} GB on a"
        f" device ({cost.argument_bytes / 1e9:.2f} GB of it arguments), the limit is"
        f" {limit / 1e9:.2f} GB"
    ]
    lines += [f"  {i}. {way}" for i, way in enumerate(ways, 1)]
    if not ways:
        lines.append("  no smaller batch and no mesh of up to 64 times the devices fits either")
    lines.append("pass on_overflow='warn' to run it all the same")
    return "\n".join(lines)
