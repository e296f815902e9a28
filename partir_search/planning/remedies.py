"""Remedies for a plan over the memory limit, with figures."""

from __future__ import annotations

from collections.abc import Sequence

from partir_search.ir.core import Module
from partir_search.ir.mesh import MeshShape
from partir_search.messages.wording import amount
from partir_search.passes.remat import find_segments, rematerialize
from partir_search.plan.facts import PlanFacts
from partir_search.plan.remedy import Remedy
from partir_search.planning.known_strategies import known_costs
from partir_search.planning.planner import Planner
from partir_search.simulator.cost import Cost
from partir_search.simulator.target.machine import Machine

MAX_DEVICE_FACTOR = 64  # largest mesh tried as a remedy, in multiples of the user's mesh


class DoesNotFit(MemoryError):
    """A plan needs more memory than allowed; the message lists remedies."""


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
        recomputed = (
            _tightest(Planner(rematerialize(module, segments), mesh, machine)) if segments else cost
        )
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
    larger_mesh = _more_devices(Planner(module, mesh, machine), mesh, limit)
    return [*found, *([larger_mesh] if larger_mesh else [])]


def _batch(module: Module) -> int:
    """Leading dim of the first array argument outside the train state; 0 without one."""
    tied = {i for i, _ in module.ties}
    shapes = [v.type.shape for i, v in enumerate(module.body.args) if i not in tied]
    return next((shape[0] for shape in shapes if len(shape) >= 2), 0) if tied else 0


def _more_devices(planner: Planner, mesh: MeshShape, limit: float) -> Remedy | None:
    """Smallest multiple of a planner's mesh with a known strategy within the limit."""
    times = 2
    while times <= MAX_DEVICE_FACTOR:
        for axis in range(len(mesh.names)):
            sizes = tuple(n * times if a == axis else n for a, n in enumerate(mesh.sizes))
            larger = MeshShape(mesh.names, sizes)
            if planner.model.least_peak(larger.devices) > limit:
                continue
            cost = _tightest(planner.on_mesh(larger))
            if cost.peak_bytes <= limit:
                what = f"{larger.devices} devices instead of {mesh.devices} (mesh<{larger}>)"
                return Remedy(what, cost.peak_bytes, cost.seconds)
        times *= 2
    return None


def _tightest(planner: Planner) -> Cost:
    """Cost of the known strategy with the lowest peak memory."""
    return min((cost for _, cost in known_costs(planner)), key=lambda c: c.peak_bytes)


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
