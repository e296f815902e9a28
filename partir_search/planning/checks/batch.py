"""Warning about a batch size divided by no mesh axis."""

from __future__ import annotations

import warnings

from partir_search.messages.wording import multiples
from partir_search.plan.plan import Plan
from partir_search.plan.spec import PlanSpec
from partir_search.planning.options import Options
from partir_search.planning.tactics import AutomaticPartition
from partir_search.propagation.data_arguments import batched_arguments
from partir_search.propagation.loop_batches import batch_dims


def warn_uneven(plan: Plan, options: Options) -> None:
    """Warns once per plan if the search could not tile the batch on any mesh axis.

    The batch is the leading dim of the first data argument of rank two or more, or the next dim if
    a loop reads the argument by its leading dim.
    No warning is given if the user fixed some layouts (in_shardings, tactics on some axes only).
    """
    axes = {axis for search in plan.searches for axis in search.axes}
    tactics = options.schedule or ()
    if isinstance(tactics, Plan | PlanSpec) or not axes.issuperset(plan.mesh_shape.user.names):
        return
    excluded = any(isinstance(t, AutomaticPartition) and t.exclude for t in tactics)
    if excluded or options.in_shardings is not None or options.shardings_like is not None:
        return
    if text := uneven_batch(plan):
        warnings.warn(text, stacklevel=2)


def uneven_batch(plan: Plan) -> str:
    """Text of the warning about a batch that no axis of the plan's mesh divides; "" if one does."""
    data = batched_arguments(plan.module)
    if not data:
        return ""
    path, value, spec = plan.arguments()[data[0]]
    dim = batch_dims(plan.module, data[:1])[data[0]]
    n, total = value.type.shape[dim], plan.mesh_shape.devices
    if n < 2 or (len(spec) > dim and spec[dim] is not None):
        return ""
    if any(n % size == 0 for size in plan.mesh_shape.sizes if size > 1) or total == 1:
        return ""
    return (
        f"{path} has shape {value.type.shape}: no axis of mesh<{plan.mesh_shape.user}> divides its"
        f" batch of {n}, so every device holds all of it; {multiples(n, total)} would divide by"
        f" all {total} devices"
    )
