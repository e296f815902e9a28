"""A warning where a search can tile a batch on no axis, as none divides its size."""

from __future__ import annotations

import warnings

from partir_search.messages.wording import multiples
from partir_search.plan.plan import Plan
from partir_search.plan.spec import PlanSpec
from partir_search.planning.options import Options
from partir_search.planning.tactics import AutomaticPartition


def warn_uneven(plan: Plan, options: Options) -> None:
    """Warns once for a plan if no axis of the mesh divides the batch that a search was to tile.

    The batch is the leading dim of the first argument of rank two or more that is no train state.
    What the user decided otherwise (in_shardings, other tactics on some axes) is not warned of.
    """
    axes = {axis for search in plan.searches for axis in search.axes}
    tactics = options.schedule or ()
    if isinstance(tactics, Plan | PlanSpec) or not axes.issuperset(plan.mesh_shape.user.names):
        return
    left = any(isinstance(t, AutomaticPartition) and t.leave for t in tactics)
    if left or options.in_shardings is not None or options.follow is not None:
        return
    if text := uneven_batch(plan):
        warnings.warn(text, stacklevel=2)


def uneven_batch(plan: Plan) -> str:
    """Words on a batch that no axis of the plan's mesh divides; "" if one does."""
    tied = {i for i, _ in plan.module.ties}
    data = [a for i, a in enumerate(plan.arguments()) if i not in tied and len(a[1].type.shape) > 1]
    if not tied or not data:
        return ""
    path, value, spec = data[0]
    n, total = value.type.shape[0], plan.mesh_shape.devices
    if n < 2 or (len(spec) and spec[0] is not None):
        return ""
    if any(n % size == 0 for size in plan.mesh_shape.sizes if size > 1) or total == 1:
        return ""
    return (
        f"{path} has shape {value.type.shape}: no axis of mesh<{plan.mesh_shape.user}> divides its"
        f" batch of {n}, so every device holds all of it; {multiples(n, total)} would divide by"
        f" all {total} devices"
    )
