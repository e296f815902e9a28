"""Forms of a program with and without independent iterations of scans in parts."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator

from partir_search.ir.core import Module, Op
from partir_search.ir.mesh import MeshShape
from partir_search.passes.parallel_iterations import with_parallel_iterations
from partir_search.plan.plan import Plan
from partir_search.planning.stage import Stage
from partir_search.rules.registry import RuleTable
from partir_search.simulator.op_kinds import total_flops

MIN_SHARE = 0.02  # of the program's operations in a scan, below which the scan is left alone
FASTER = 1.1  # simulated seconds without parts over seconds in parts, at least: they take memory
GAIN = 1.2  # seconds of known strategies over those of a plan that a search may find, at most


def iteration_forms(
    stage: Stage, mesh: MeshShape, known: int | None, is_short: Callable[[], bool]
) -> Iterator[Stage]:
    """The program unchanged, with independent iterations in a part per device, and in fewer parts.

    Args:
      mesh: the user's mesh; the sizes of axes are the fewer parts.
      known: parts of a plan to replay, whose form is the only one; None for none.
      is_short: False if no plan of the forms so far lacks memory: fewer parts, which need less,
        are left out.
    """
    if known is not None:
        yield _in_parts(stage, known) or stage
        return
    yield stage
    sizes = sorted({n for n in mesh.device_sizes if 1 < n < mesh.devices}, reverse=True)
    for parts in (mesh.devices, *sizes):
        if parts < mesh.devices and not is_short():
            return
        found = _in_parts(stage, parts)
        if found is not None:
            yield found
        elif parts == mesh.devices:
            return


def _in_parts(stage: Stage, parts: int) -> Stage | None:
    """The program in up to `parts` parts; None if no scan has independent iterations."""
    if parts < 2:
        return None
    rules = RuleTable()
    least = MIN_SHARE * total_flops(stage.module.body.ops, rules)

    def rewrite(module: Module) -> Module:
        return with_parallel_iterations(module, parts, worthwhile)

    def worthwhile(op: Op) -> bool:
        return total_flops([op], rules) > least

    rewrites = dataclasses.replace(stage.rewrites, parallel_iterations=parts)
    found = stage.run("parallel_iterations", rewrite, rewrites)
    return None if found.module is stage.module else found


def rival_seconds(stage: Stage, best: Plan | None) -> float:
    """Seconds that a known strategy of a form must reach for a search; infinite for any."""
    if best is None or not best.fits or stage.rewrites.parallel_iterations == 1:
        return math.inf
    return GAIN * best.cost.seconds / (FASTER if best.parallel_iterations == 1 else 1.0)
