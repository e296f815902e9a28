"""Profiles of unique segments of plans, composed and held against whole steps.

    python -m experiments.profile --model=transformer-tiny --mesh=data:4,model:2 --plans=4 \
        --how=devices --sizes="layers=3,d_model=256,heads=8,d_ff=1024,vocab=1024,seq=64" --batch=16

Prints for each plan the segments with runs, seconds simulated and measured, and temporaries, and
the composed step beside the whole one; at the end rank correlation and error over the plans. `how`
is `devices` (virtual CPU devices here), `one` (one device, no collectives; these are the
simulator's) or a target as tpu_v5e:2x4 (compiled ahead of time in processes). Figures are kept in a
file by the content of a segment: segments of equal content are measured once, in all runs.
"""

from __future__ import annotations

import ast
import collections
import contextlib
import ctypes
import dataclasses
import json
import math
import pathlib
import resource
import time
from collections.abc import Sequence
from typing import Any

from experiments.devices import use_cpu_devices

use_cpu_devices(default_mesh="data:4,model:2")

import jax  # noqa: E402  (the devices must be set before jax starts)
import numpy as np  # noqa: E402
from absl import app, flags  # noqa: E402
from jax.sharding import AxisType  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402
from scipy.stats import spearmanr  # noqa: E402

import partir_search as ps  # noqa: E402
from experiments import planning_flags  # noqa: E402
from models.catalog import MODELS  # noqa: E402
from partir_search.plan.report.progress import step_progress  # noqa: E402
from partir_search.segments.measure.ahead_of_time import ahead_of_time  # noqa: E402
from partir_search.segments.measure.measured import Measured, unmeasured  # noqa: E402
from partir_search.segments.measure.on_devices import on_devices  # noqa: E402
from partir_search.segments.measure.one_device import on_one_device  # noqa: E402
from partir_search.segments.segment import Segment, Segments  # noqa: E402

FLAGS = flags.FLAGS
flags.DEFINE_string("model", "transformer-tiny", "Model of the catalog.")
flags.DEFINE_string("sizes", "", "Fields of the model's config: layers=3,dtype='float32'.")
flags.DEFINE_integer("batch", 16, "Examples of a step.")
flags.DEFINE_integer("plans", 3, "Known strategies, spread evenly from fast to slow.")
flags.DEFINE_multi_string("name", [], "A known strategy to profile instead.")
flags.DEFINE_string("how", "devices", "devices, one, or a target as tpu_v5e:2x4.")
flags.DEFINE_string("machine", "cpu", "Machine to plan for, unless a target says it.")
flags.DEFINE_enum("clock", "cpu", ["cpu", "wall"], "Clock of runs on devices.")
flags.DEFINE_integer("runs", 10, "Timed runs of a segment.")
flags.DEFINE_boolean("in_turns", False, "Time all plans' segments and steps in turns.")
flags.DEFINE_boolean("whole", True, "Measure whole steps as well.")
flags.DEFINE_string("file", "segments.json", "File of measured segments, read and added to.")
planning_flags.define(mesh="data:4,model:2")


class Store:
    """File of measured segments, by method and key."""

    def __init__(self, path: str, method: str) -> None:
        self._path, self._method = pathlib.Path(path), method
        self._rows: dict[str, Any] = {}
        if self._path.exists():
            self._rows = json.loads(self._path.read_text())

    def __contains__(self, key: str) -> bool:
        return f"{self._method} {key}" in self._rows

    def __getitem__(self, key: str) -> Measured:
        return Measured(**self._rows[f"{self._method} {key}"])

    def add(self, found: dict[str, Measured]) -> None:
        """Adds figures and writes the file."""
        for key, each in found.items():
            self._rows[f"{self._method} {key}"] = dataclasses.asdict(each)
        self._path.write_text(json.dumps(self._rows, indent=1) + "\n")


def chosen_plans(mesh: Any, machine: Any) -> dict[str, ps.Plan]:
    """Known strategies unlike in cost, evenly from fast to slow, or by name."""
    call = ast.parse(f"f({FLAGS.sizes})", mode="eval").body
    assert isinstance(call, ast.Call)
    sizes = {str(k.arg): ast.literal_eval(k.value) for k in call.keywords}
    entry = MODELS[FLAGS.model].resized(**sizes)
    step = ps.auto_partition(mesh, machine=machine, progress=False)(entry.step)
    known = step.known_plans(*entry.abstract_args(FLAGS.batch))
    if FLAGS.name:
        return {name: known[name] for name in FLAGS.name}
    unlike: dict[tuple[float, float], str] = {}
    for name, plan in known.items():
        unlike.setdefault((round(plan.cost.seconds, 7), round(plan.cost.peak_bytes, -4)), name)
    ranked = [unlike[key] for key in sorted(unlike)]
    places = np.linspace(0, len(ranked) - 1, min(FLAGS.plans, len(ranked))).round().astype(int)
    return {ranked[i]: known[ranked[i]] for i in dict.fromkeys(places.tolist())}


def measure(segments: Sequence[Segment], mesh: Any, what: str) -> dict[str, Measured]:
    """Measures segments with a bar of progress."""
    with step_progress(True, what, len(segments)) as done:
        if FLAGS.how == "devices":
            return on_devices(
                segments,
                mesh,
                runs=FLAGS.runs,
                clock=FLAGS.clock,
                in_turns=FLAGS.in_turns,
                done=done,
            )
        if FLAGS.how == "one":
            return on_one_device(segments, runs=FLAGS.runs, clock=FLAGS.clock, done=done)
        return ahead_of_time(segments, ps.Target.parse(FLAGS.how), done=done)


def table(name: str, segments: Segments, store: Store) -> Table:
    """Segments of a plan, simulated and measured."""
    found = Table(title=name, title_justify="left")
    columns = ("segment", "runs", "simulated ms", "measured ms", "ratio", "spread", "temp MB")
    for column in columns:
        found.add_column(column, justify="left" if column == "segment" else "right")
    for each in segments.unique:
        got, simulated = store[each.key], each.simulated.seconds
        found.add_row(
            *(each.name, str(each.instances), f"{simulated * 1e3:.3f}", f"{got.seconds * 1e3:.3f}"),
            f"{got.seconds / simulated:.2f}" if simulated else "",
            *(f"{got.spread:.2f}", f"{got.temp_bytes / 1e6:.1f}"),
        )
    return found


def keep_freed_memory() -> None:
    """Makes glibc keep freed memory, where there is one.

    Large results are given back to the system otherwise, and every run pays for their pages again:
    a whole step more than its segments, 20 % of a step of replicated optimizers.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):
        library = ctypes.CDLL(None)
        for parameter, value in ((-4, 0), (-1, 2**31 - 1)):  # M_MMAP_MAX, M_TRIM_THRESHOLD
            library.mallopt(parameter, value)


def cpu_seconds() -> float:
    """CPU seconds of this process and of ended processes that it started."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def main(argv: list[str]) -> None:
    del argv
    keep_freed_memory()
    shape = ps.MeshShape.parse(FLAGS.mesh)
    ahead = ":" in FLAGS.how
    machine = ps.Target.parse(FLAGS.how).machine if ahead else FLAGS.machine
    types = (AxisType.Auto,) * len(shape.names)
    mesh = (
        ps.Target.parse(FLAGS.how).mesh(shape)
        if ahead
        else jax.make_mesh(shape.sizes, shape.names, types)
    )
    store = Store(FLAGS.file, f"{FLAGS.how} {'' if ahead else FLAGS.clock} jax {jax.__version__}")
    console = Console(width=150)
    figures: dict[str, list[float]] = collections.defaultdict(list)
    plans = {name: (p, p.segments(mesh)) for name, p in chosen_plans(mesh, machine).items()}
    whole = FLAGS.whole and FLAGS.how != "one"
    if FLAGS.in_turns:
        every = [each for _, found in plans.values() for each in found.unique]
        every += [found.whole for _, found in plans.values() if whole]
        store.add(measure(unmeasured(every, store.__contains__), mesh, FLAGS.model))
    for name, (plan, segments) in plans.items():
        begin = cpu_seconds()
        new = unmeasured(segments.unique, store.__contains__)
        store.add(measure(new, mesh, name))
        spent = cpu_seconds() - begin
        console.print(table(name, segments, store))
        seconds = {each.key: store[each.key].seconds for each in segments.unique}
        composed = segments.composed(seconds)
        line = f"composed {composed * 1e3:.2f} ms, simulated {plan.cost.seconds * 1e3:.2f} ms"
        if whole:
            rest = unmeasured([segments.whole], store.__contains__)
            store.add(measure(rest, mesh, f"{name}, whole"))
            step = store[segments.whole.key].seconds
            line += f", whole {step * 1e3:.2f} ms, composed / whole {composed / step:.3f}"
            figures["whole"].append(step)
            figures["composed"].append(composed)
            figures["simulated"].append(plan.cost.seconds)
        console.print(f"{line}; {len(new)} segments measured in {spent:.0f} CPU s\n")
    if len(figures["whole"]) > 1:
        console.print(summary(figures))


def summary(figures: dict[str, list[float]]) -> str:
    """Rank correlations, and error of the composed seconds over the mean of the whole steps'."""
    whole, composed = np.array(figures["whole"]), np.array(figures["composed"])
    error = math.sqrt(float(np.mean((composed - whole) ** 2))) / float(whole.mean())
    scale = float(whole @ composed / (composed @ composed))
    scaled = math.sqrt(float(np.mean((scale * composed - whole) ** 2))) / float(whole.mean())
    rank = spearmanr(composed, whole).statistic
    simulated = spearmanr(figures["simulated"], whole).statistic
    return (
        f"{len(whole)} plans: Spearman {rank:.3f} composed, {simulated:.3f} simulated; RMSE / mean"
        f" {error:.4f}, after one scale {scaled:.4f}; ratios {np.min(composed / whole):.3f}"
        f" to {np.max(composed / whole):.3f}"
    )


if __name__ == "__main__":
    app.run(main)
