"""Remedies for a plan over the memory limit, with figures."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence

from partir_search.ir.core import Module
from partir_search.ir.mesh import MeshShape
from partir_search.messages.wording import amount
from partir_search.plan.facts import PlanFacts
from partir_search.plan.remedy import Remedy
from partir_search.planning.alternatives import Forms
from partir_search.planning.known_strategies import KnownMoves, Rank
from partir_search.planning.planner import Planner
from partir_search.propagation.data_arguments import batched_arguments
from partir_search.propagation.loop_batches import batch_dims
from partir_search.simulator.cost import Cost

MAX_DEVICE_FACTOR = 64  # largest mesh tried as a remedy, in multiples of the user's mesh


class DoesNotFit(MemoryError):
    """A plan needs more memory than allowed; the message lists remedies."""


def remedies_of(plan: PlanFacts, forms: Forms) -> list[Remedy]:
    """At most three remedies for a plan over the memory limit, cheapest first.

    Args:
      plan: a plan over the limit.
      forms: forms of the plan's program, with their planners.
    """
    limit, cost, found = plan.memory_limit, plan.cost, list[Remedy]()
    recomputed = None if plan.remat else forms.all_recomputed
    if recomputed is not None:
        tightest = _tightest(forms.planner_of(recomputed), limit)
        if tightest is not None:
            what = "let activations be computed again (remat='auto')"
            found.append(Remedy(what, tightest.peak_bytes, tightest.seconds))
    batch, other_bytes = _batch(plan.original), cost.peak_bytes - cost.argument_bytes
    if batch and cost.argument_bytes < limit:
        smaller = int(batch * (limit - cost.argument_bytes) / other_bytes)
        if 0 < smaller < batch:
            peak = cost.argument_bytes + other_bytes * smaller / batch
            found.append(Remedy(f"a batch of about {smaller} instead of {batch}", peak))
    most_recomputed = list(forms.of(plan).values())[-1]
    planner = forms.planner_of(most_recomputed)
    larger_mesh = _more_devices(planner, plan.mesh_shape.user, limit)
    return [*found, *([larger_mesh] if larger_mesh else [])]


def _batch(module: Module) -> int:
    """Batch of the first data argument of rank two or more; 0 without one."""
    data = batched_arguments(module)
    dims = batch_dims(module, data[:1])
    return next((module.body.args[i].type.shape[dim] for i, dim in dims.items()), 0)


def _more_devices(planner: Planner, mesh: MeshShape, limit: float) -> Remedy | None:
    """Smallest multiple of a planner's mesh with a known strategy within the limit."""
    times = 2
    while times <= MAX_DEVICE_FACTOR:
        for axis in range(len(mesh.names)):
            sizes = tuple(n * times if a == axis else n for a, n in enumerate(mesh.sizes))
            larger = MeshShape(mesh.names, sizes)
            if planner.model.least_peak(larger.devices) > limit:
                continue
            cost = None
            with contextlib.suppress(ValueError):  # of a shard_map or a fixed sharding on this mesh
                cost = _tightest(planner.on_mesh(larger), limit)
            if cost is not None:
                what = f"{larger.devices} devices instead of {mesh.devices} (mesh<{larger}>)"
                return Remedy(what, cost.peak_bytes, cost.seconds)
        times *= 2
    return None


def _tightest(planner: Planner, limit: float) -> Cost | None:
    """Cost of the known strategy with the lowest peak memory; None beyond a limit of bytes."""
    found = KnownMoves(planner).least(_peak, below=(math.nextafter(limit, math.inf),))
    return found[1] if found else None


def _peak(cost: Cost) -> Rank:
    return (cost.peak_bytes,)


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
