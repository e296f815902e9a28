"""Predictions with a profile against whole steps on the devices at hand (`experiments.truth`).

Plans of a small transformer and a small mixture run as whole steps. Their seconds are predicted by
the machine's figures as they are known, by the machine's entries of the profile alone, and with
segments: of the half of the plans that a row is not in, with ratios of each level for unknown
kernels, and of all plans. By CPU seconds of the process over the number of devices, on CPU devices.
"""

from __future__ import annotations

import dataclasses
import math
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType
from rich.console import Console
from rich.table import Table
from scipy.stats import spearmanr

import partir_search as ps
from models.catalog import MODELS
from partir_search.plan.report.progress import step_progress
from partir_search.profile.entries import MeasuredSegment
from partir_search.profile.ratios import FALLBACK, LEVELS, fit
from partir_search.profiling.clocks import clock_of
from partir_search.profiling.segments import composed, devices_of, entry_key, measured_into
from partir_search.segments.measure.on_devices import on_devices

_SMALL = {"d_model": 256, "heads": 8, "d_ff": 1024, "vocab": 1024, "seq": 64, "dtype": "float32"}
CASES: Mapping[str, tuple[str, int, dict[str, Any]]] = {
    "transformer": ("transformer-tiny", 16, _SMALL | {"layers": 3}),
    "mixture": ("moe-tiny", 16, _SMALL | {"layers": 2, "experts": 8}),
}
EXACT = "sizes alone"  # ratios of kernels at the same sizes; 1 for all others


def plans_of(step: Any, args: Any, count: int) -> dict[str, ps.Plan]:
    """Known strategies unlike in cost, evenly from fast to slow."""
    unlike: dict[tuple[float, float], tuple[str, ps.Plan]] = {}
    for name, plan in step.known_plans(*args).items():
        key = round(plan.cost.seconds, 7), round(plan.cost.peak_bytes, -4)
        unlike.setdefault(key, (name, plan))
    ranked = [unlike[key] for key in sorted(unlike)]
    places = np.linspace(0, len(ranked) - 1, min(count, len(ranked))).round().astype(int)
    return {ranked[i][0]: ranked[i][1] for i in dict.fromkeys(places.tolist())}


def predicted(
    step: Any, args: Any, profile: ps.Profile | None, names: Sequence[str]
) -> list[float]:
    """Seconds of known strategies by a profile."""
    chosen = step if profile is None else step.with_profile(profile)
    plans = chosen.known_plans(*args)
    return [plans[name].cost.seconds for name in names]


def with_segments(
    profile: ps.Profile, segments: Mapping[str, MeasuredSegment], way: str = FALLBACK
) -> ps.Profile:
    """A profile with some segments, and ratios of unknown kernels up to a level."""
    found = dataclasses.replace(profile, segments=dict(segments))
    ratios = fit(list(segments.values()))
    found.__dict__["ratios"] = dataclasses.replace(ratios, fallback="" if way == EXACT else way)
    return found


def case(
    name: str, mesh: Any, profile: ps.Profile, count: int, runs: int
) -> tuple[dict[str, list[float]], ps.Profile]:
    """Measured and predicted seconds of a case's plans, by column, and the larger profile."""
    model, batch, sizes = CASES[name]
    entry = MODELS[model].resized(**sizes)
    args = entry.abstract_args(batch)
    step = ps.auto_partition(mesh, machine=profile.machine, progress=False)(entry.step)
    plain = plans_of(step, args, count)
    names, method = list(plain), devices_of(mesh, runs)
    priced = step.with_profile(profile).known_plans(*args)
    plans = [(priced[n], priced[n].segments(method.mesh)) for n in names]
    total = len({each.key for _, segments in plans for each in segments.unique})
    with step_progress(True, f"{name}, segments", total) as done:
        profile = measured_into(profile, plans, method, done)
    wholes = [segments.whole for _, segments in plans]
    with step_progress(True, f"{name}, whole steps", len(wholes)) as done:
        clock = clock_of(mesh)
        found = on_devices(wholes, mesh, runs=runs, clock=clock, done=done)
    own = [
        {entry_key(e, method): profile.segments[entry_key(e, method)] for e in s.unique}
        for _, s in plans
    ]
    halves = [
        {k: v for at, each in enumerate(own) if at % 2 != odd for k, v in each.items()}
        for odd in (0, 1)
    ]
    columns = {
        "measured": [found[w.key].seconds for w in wholes],
        "known figures": predicted(step, args, None, names),
        "machine measured": predicted(step, args, with_segments(profile, {}), names),
    }
    for way in (EXACT, *LEVELS[:3]):
        both = [predicted(step, args, with_segments(profile, h, way), names) for h in halves]
        columns[f"other half, {way}"] = [both[at % 2][at] for at in range(len(names))]
    every = {k: v for each in own for k, v in each.items()}
    columns["all segments"] = predicted(step, args, with_segments(profile, every), names)
    columns["composed"] = [composed(s, method, profile) for _, s in plans]
    return columns, profile


def table(title: str, columns: Mapping[str, Sequence[float]]) -> Table:
    """Rank correlation, errors and ratios of each prediction."""
    found = Table(title=title, title_justify="left")
    for i, column in enumerate(("predicted by", "Spearman", "RMSE / mean", "scaled", "ratio")):
        found.add_column(column, justify="right" if i else "left")
    measured = np.array(columns["measured"])
    for name, seconds in list(columns.items())[1:]:
        each = np.array(seconds)
        scale = float(measured @ each / (each @ each))
        rank = spearmanr(each, measured).statistic
        errors = (f"{error(each, measured):.3f}", f"{error(scale * each, measured):.3f}")
        ratio = each / measured
        found.add_row(name, f"{rank:.3f}", *errors, f"{ratio.min():.2f}..{ratio.max():.2f}")
    return found


def error(predicted: np.ndarray, measured: np.ndarray) -> float:
    """Root of the mean squared error over the mean of the measured seconds."""
    return math.sqrt(float(np.mean((predicted - measured) ** 2))) / float(measured.mean())


def run(mesh_text: str, file: str, cases: Sequence[str], count: int, runs: int) -> None:
    """Measures and prints all cases; segments are added to the profile's file."""
    shape = ps.MeshShape.parse(mesh_text)
    types = (AxisType.Auto,) * len(shape.names)
    mesh = jax.make_mesh(shape.sizes, shape.names, types)
    console = Console(width=120)
    for title, columns, profile in _cases(mesh, ps.load_profile(file), cases, count, runs):
        ms = ", ".join(f"{s * 1e3:.1f}" for s in columns["measured"])
        console.print(table(title, columns))
        console.print(f"measured, ms: {ms}\n")
        profile.save(pathlib.Path(file))


def _cases(
    mesh: Any, profile: ps.Profile, cases: Sequence[str], count: int, runs: int
) -> Iterator[tuple[str, dict[str, list[float]], ps.Profile]]:
    for name in cases:
        columns, profile = case(name, mesh, profile, count, runs)
        yield f"{name}, {len(columns['measured'])} plans", columns, profile
