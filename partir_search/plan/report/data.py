"""A plan's report, known strategies and comparisons as JSON values (`report/schema.py`)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import PartitionSpec

from partir_search.messages.version import VERSION
from partir_search.plan.compare import Comparison
from partir_search.plan.facts import PlanFacts
from partir_search.plan.peak_memory import argument_parts, peak_memory
from partir_search.plan.plan_bound import PlanBound
from partir_search.plan.report.summary import headlines, summary
from partir_search.plan.step_seconds import collective_rows, kernel_rows, step_seconds
from partir_search.simulator.cost import Cost

FORMAT = 1


def report_data(plan: PlanFacts) -> dict[str, Any]:
    """Figures, answers and tables of a plan; seconds and bytes are of one step on one device."""
    memory = peak_memory(plan)
    return {
        "format": FORMAT,
        "function": plan.module.name,
        "fingerprint": plan.fingerprint,
        "mesh": dict(plan.mesh_shape.user.as_dict()),
        "machine": plan.machine.name,
        "fits": plan.fits,
        "memory_limit": plan.memory_limit if math.isfinite(plan.memory_limit) else None,
        "headlines": headlines(plan),
        "summary": dict(summary(plan)),
        "cost": {**cost_data(plan.cost), "sent_bytes": plan.sent_bytes},
        "limits": step_seconds(plan).limits,
        "bound": _bound_data(plan.bound) if plan.bound else None,
        "proven": plan.proven,
        "confirmed": plan.confirmed.to_json() if plan.confirmed else None,
        "microbatches": plan.microbatches,
        "pipeline": dataclasses.asdict(plan.pipeline) if plan.pipeline else None,
        "parallel_iterations": plan.parallel_iterations,
        "scan_layers": plan.scan_layers,
        "recomputed_segments": len(plan.remat),
        "stored_results": plan.stored_results,
        "alternatives": [
            {
                "name": a.name,
                **cost_data(a.cost),
                "fits": a.fits,
                "recomputed": a.recomputed,
                "alike": list(a.alike),
            }
            for a in plan.alternatives
        ],
        "changes": [dataclasses.asdict(c) for c in plan.changes],
        "arguments": _arguments(plan),
        "kernels": [dataclasses.asdict(row) for row in kernel_rows(plan)],
        "collectives": [
            {**dataclasses.asdict(row), "axes": row.axes.split("+")}
            for row in collective_rows(plan)
        ],
        "memory": dict(memory.parts),
        "live": [dataclasses.asdict(row) for row in memory.live],
        "versions": {"partir_search": VERSION, "jax": jax.__version__},
    }


def cost_data(cost: Cost) -> dict[str, float]:
    """Figures of a cost."""
    return {
        "seconds": cost.seconds,
        "compute_seconds": cost.compute_seconds,
        "collective_seconds": cost.collective_seconds,
        "peak_bytes": cost.peak_bytes,
        "argument_bytes": cost.argument_bytes,
        "flops": cost.flops,
    }


def _bound_data(bound: PlanBound) -> dict[str, Any]:
    return {"seconds": bound.seconds, "gap": bound.gap, "without": [*bound.without]}


def _arguments(plan: PlanFacts) -> list[dict[str, Any]]:
    parts = argument_parts(plan)
    found = zip(plan.arguments(), plan.program.body.args, strict=True)
    return [
        {
            "path": path,
            "type": str(value.type),
            "spec": spec_data(spec),
            "local_shape": list(slot.shape),
            "local_bytes": slot.nbytes,
            "role": parts[value.id],
        }
        for (path, value, spec), slot in found
    ]


def spec_data(spec: PartitionSpec) -> list[list[str]]:
    """Mesh axes of each dim, major to minor; trailing dims without axes may be missing."""
    return [
        [] if entry is None else [entry] if isinstance(entry, str) else list(entry)
        for entry in tuple(spec)
    ]


def strategies_data(plans: Mapping[str, PlanFacts]) -> list[dict[str, Any]]:
    """Figures of known strategies, the fastest that fit first."""
    return [
        {"name": name, **cost_data(plan.cost), "fits": plan.fits} for name, plan in plans.items()
    ]


def comparison_data(found: Comparison) -> dict[str, Any]:
    """Figures of two plans, and the arguments and collectives that differ."""
    return {
        "before": cost_data(found.before.cost),
        "after": cost_data(found.after.cost),
        "arguments": {path: list(specs) for path, specs in found.arguments.items()},
        "collectives": [
            {"kind": g.kind, "axes": list(g.axes), "source": g.source, "before": x, "after": y}
            for g, (x, y) in found.collectives.items()
        ],
    }
