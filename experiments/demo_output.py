"""What `experiments.transformer` prints: at most 120 lines, in words first."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from rich.console import Console

import partir_search as ps

IR_LINES, STRATEGIES = 10, 5
BLOCKS = "▁▂▃▄▅▆▇█"  # of a picture of numbers, lowest first
COMPILER_MESHES = {("tpu_v5e", 8): "tpu_v5e:2x4", ("h100", 8): "gpu_h100:8"}


def show_plan(console: Console, plan: ps.Plan, scope: str) -> None:
    """Answers in words, tables of arguments and strategies, the first lines of one layer."""
    console.print(ps.report.summary_text(plan))
    console.print(ps.report.arguments_table(plan))
    if plan.searches:
        console.print()
        console.print(ps.report.strategies_table(plan))
    lines = plan.ir(f"forward of {scope}").splitlines()
    console.print(f"\n{scope} as loops over the mesh:")
    for line in lines[:IR_LINES]:
        console.print(f"  {line[: console.width - 2]}", markup=False, highlight=False)
    console.print(f'  ... {len(lines) - IR_LINES} lines more: plan.ir("{scope}")\n')
    for prim, (n, where) in plan.opaque().items():
        console.print(f"no rule for {prim} ({n} uses, first at {where}): replicated")


def show_compiled(console: Console, plan: ps.Plan, lowered: Any, compiled: Any) -> None:
    """Collectives predicted, emitted and compiled, with a sentence on the difference."""
    found = {
        "emitted": ps.stablehlo_counts(lowered.as_text()),
        "compiled": ps.hlo_counts(compiled.as_text()),
    }
    console.print(ps.report.collectives_table(plan, found))
    console.print(why_compiled_differs(plan.collective_counts, found["compiled"]), highlight=False)


def why_compiled_differs(predicted: Mapping[str, int], compiled: Mapping[str, int]) -> str:
    """Sentence on the collectives that XLA:CPU compiles otherwise than predicted."""
    merged = {k: n - compiled[k] for k, n in predicted.items() if n > compiled[k]}
    added = {k: compiled[k] - n for k, n in predicted.items() if n < compiled[k]}
    if not merged and not added:
        return "Every collective is compiled as predicted."
    words = [f"{n} {k} fewer" for k, n in merged.items()] + [
        f"{n} {k} more" for k, n in added.items()
    ]
    return (
        f"Compiled for CPU: {', '.join(words)}. XLA:CPU drops the barriers that keep apart gathers"
        " made twice on purpose, to free memory in between, and merges them; TPU and GPU keep both."
    )


def show_target(console: Console, plan: ps.Plan) -> None:
    """Memory and collectives by the target's compiler, if installed; the prediction otherwise."""
    predicted = f"predicted peak on {plan.machine.name}: {plan.cost.peak_bytes / 1e6:.1f} MB"
    target = COMPILER_MESHES.get((plan.machine.name, plan.mesh_shape.devices))
    if target is None:
        console.print(f"{predicted}; plan.verify(target) compares with its compiler")
        return
    try:
        found = plan.verify(target)
    except RuntimeError:  # no compiler for the target here
        console.print(f"{predicted}; with `pip install libtpu`, plan.verify({target!r}) compares")
        return
    _, peak = found.peak_bytes
    same = "all as predicted" if found.confirmed else "; ".join(found.unexplained)
    console.print(
        f"{predicted}; its compiler says {peak / 1e6:.1f} MB, collectives: {same}", highlight=False
    )


def show_speed(console: Console, ours: Sequence[float], jitted: Sequence[float] | None) -> None:
    """Median seconds per step of the emitted program, and of `jax.jit` with the same shardings."""
    text = f"emitted step: {statistics.median(ours) * 1e3:.1f} ms"
    if jitted:
        text += f"; jax.jit with the same shardings: {statistics.median(jitted) * 1e3:.1f} ms"
    console.print(f"{text} (median of {len(ours)} on these {jax.device_count()} devices)")


def picture(values: Sequence[float]) -> str:
    """Numbers as blocks of eight heights, lowest to highest."""
    low, high = min(values), max(values)
    scale = (len(BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(BLOCKS[round((v - low) * scale)] for v in values)


def show_losses(console: Console, found: Mapping[int, float], expected: Sequence[float]) -> float:
    """Prints both runs' losses as pictures; returns the largest relative difference."""
    worst = 0.0
    for i, a in found.items():
        difference = abs(a - expected[i]) / max(abs(expected[i]), 1e-9)
        worst = max(worst, difference) if np.isfinite(a) else float("inf")
    ours = [loss for loss in found.values() if np.isfinite(loss)]
    if ours:
        plain = [expected[i] for i in found]
        ends = f"{ours[0]:.3f} to {ours[-1]:.3f}"
        console.print(f"losses, partitioned  {picture(ours)}  {ends}", highlight=False)
        ends = f"{plain[0]:.3f} to {plain[-1]:.3f}"
        console.print(f"losses, one device   {picture(plain)}  {ends}", highlight=False)
    return worst


NEXT = """
What next
  plan.save_report("report.html")      the same with pictures: timeline, memory, tiles
  plan.explain("state/params/**")      who tiled what; plan.what_if(path, spec): other choices
  step.check(state, batch)             partitioned against plain, leaf by leaf
  docs/index.md                        ten minutes; docs/reports.md, docs/tactics.md
"""
