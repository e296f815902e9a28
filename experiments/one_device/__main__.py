"""Whole steps on one device: seconds and memory, measured and predicted.

    python -m experiments.one_device --platform= --machine=h200 --processes=5 --out=rows.jsonl
    python -m experiments.one_device --cases=transformer,conformer --kernels=traces

Cases are models of the catalog with few layers and programs of `experiments.held_out`, see
`cases.py`. The partitioned program on a mesh of one device and `jax.jit` of the step are compiled
in a process per case, and run in turns with donated state while nothing else runs. A row has the
seconds of both, the simulator's (with a profile too, by `--profile`), and the peak memory of the
compiler's buffers beside the predicted one. `--kernels` keeps the optimized HLO text and the
seconds of each kernel of the partitioned program, and prints the attained rates of kinds of
kernels.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import dataclasses
import gzip
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

from experiments.devices import use_cpu_devices

if not any(arg.startswith("--platform") and arg != "--platform=cpu" for arg in sys.argv):
    use_cpu_devices(default_mesh="data:1")

import jax
from absl import app, flags
from jax.sharding import AxisType
from rich.console import Console
from rich.table import Table

import partir_search as ps
from experiments import planning_flags
from experiments.one_device.cases import CASES, FORMS, Form, program
from experiments.one_device.kernels import Event, Kernel, events_of, kernels_of
from experiments.one_device.kernels import table as rates

FLAGS = flags.FLAGS
planning_flags.define(machine="cpu")
flags.DEFINE_string("platform", "cpu", "cpu for a virtual device; empty for what jax finds.")
flags.DEFINE_list("cases", [], "Names of cases; all if empty.")
flags.DEFINE_string("profile", None, "File of a profile to predict with.")
flags.DEFINE_integer("processes", 1, "Cases that are compiled at a time, in processes.")
flags.DEFINE_string("case", None, "Case of this process: for this script's own use.")
flags.DEFINE_integer("steps", 8, "Steps of a sample.")
flags.DEFINE_integer("samples", 5, "Samples of each program; their median counts.")
flags.DEFINE_boolean("plain", True, "Run `jax.jit` of the step as well.")
flags.DEFINE_string("kernels", None, "Folder for HLO texts and seconds of kernels.")
flags.DEFINE_string("out", None, "File for the rows, JSON lines.")
flags.DEFINE_float("budget", 1e6, "Wall seconds for all compilations.")


@dataclasses.dataclass(frozen=True)
class Ready:
    """A compiled case."""

    name: str
    plan: ps.Plan
    predicted: Mapping[str, ps.Cost]
    programs: Mapping[str, Any]
    make: Any
    seconds: float


def prepared(name: str, mesh: Any) -> Ready:
    """Plans and compiles a case: ``partitioned``, and ``jit`` if asked for."""
    begin = time.perf_counter()
    function, new_args = program(name)
    args = jax.eval_shape(new_args)
    form = FORMS.get(name, Form("", 0, {}))
    usual: dict[str, Any] = {"mesh": mesh, "machine": FLAGS.machine, "progress": False}
    usual |= {"donate_argnums": 0, "on_overflow": "warn", **form.options}
    if form.share:
        stored = ps.auto_partition(**{**usual, "remat": False})(function).plan(*args)
        usual["goals"] = [ps.Fit(form.share * stored.cost.peak_bytes), ps.Fastest()]
    step = ps.auto_partition(**usual)(function)
    plan = step.plan(*args)
    predicted = {"known figures": plan.cost}
    if FLAGS.profile:
        measured = step.with_profile(ps.load_profile(FLAGS.profile), plan)
        predicted["profile"] = measured.plan(*args).cost
    programs = {"partitioned": step.lower(*args).compile()}
    if FLAGS.plain:
        programs["jit"] = jax.jit(function, donate_argnums=0).lower(*args).compile()
    make = jax.jit(lambda: jax.tree.leaves(new_args())).lower().compile()
    tree = jax.tree.structure(args)  # optimizers of other calls are other functions

    def state() -> Any:
        return jax.tree.unflatten(tree, make())

    return Ready(name, plan, predicted, programs, state, time.perf_counter() - begin)


def timed(ready: Ready) -> dict[str, float]:
    """Median seconds of a step of each program, in turns."""
    samples = collections.defaultdict(list)
    for sample in range(FLAGS.samples + 1):
        for name, run in ready.programs.items():
            spent = sampled(ready, run)
            if sample:  # the first one warms up
                samples[name].append(spent)
    return {name: statistics.median(each) for name, each in samples.items()}


def sampled(ready: Ready, run: Any) -> float:
    """Seconds of a step of a program, from a fresh state."""
    state, *rest = ready.make()
    state, loss = run(state, *rest)
    jax.block_until_ready((state, loss))
    begin = time.perf_counter()
    for _ in range(FLAGS.steps):
        state, loss = run(state, *rest)
    jax.block_until_ready((state, loss))
    return (time.perf_counter() - begin) / FLAGS.steps


def row_of(ready: Ready, spent: Mapping[str, float]) -> dict[str, Any]:
    """Row of the table and of the file."""
    memory = ready.programs["partitioned"].memory_analysis()
    device = jax.devices()[0]
    row = {
        "case": ready.name,
        "device": device.device_kind,
        "jax": jax.__version__,
        "measured_ms": {name: round(s * 1e3, 3) for name, s in spent.items()},
        "predicted_ms": {n: round(c.seconds * 1e3, 3) for n, c in ready.predicted.items()},
        "predicted_peak": int(ready.plan.cost.peak_bytes),
        "recomputed": len(ready.plan.remat),
        "compiled_peak": int(
            memory.argument_size_in_bytes
            + memory.output_size_in_bytes
            - memory.alias_size_in_bytes
            + memory.temp_size_in_bytes
        ),
        "compile_s": round(ready.seconds, 1),
    }
    reported = getattr(memory, "peak_memory_in_bytes", None)
    return row | ({"reported_peak": int(reported)} if reported else {})


def table(rows: list[dict[str, Any]]) -> Table:
    """Table of measured over predicted figures."""
    found = Table(title=f"{rows[0]['device']}, jax {rows[0]['jax']}", title_justify="left")
    columns = ("case", "partitioned ms", "/ jit", "predicted ms", "/ measured", "peak GB", "/ XLA")
    for i, column in enumerate(columns):
        found.add_column(column, justify="right" if i else "left")
    for row in rows:
        own, plain = row["measured_ms"]["partitioned"], row["measured_ms"].get("jit")
        told = list(row["predicted_ms"].values())
        found.add_row(
            row["case"],
            f"{own:.2f}",
            f"{own / plain:.3f}" if plain else "",
            ", ".join(f"{x:.2f}" for x in told),
            ", ".join(f"{x / own:.2f}" for x in told),
            f"{row['predicted_peak'] / 1e9:.2f}",
            f"{row['predicted_peak'] / row['compiled_peak']:.3f}",
        )
    return found


def traced(ready: Ready) -> list[Event]:
    """Kernels of a step of the partitioned program."""
    state, *rest = ready.make()
    run = ready.programs["partitioned"]
    state, _ = jax.block_until_ready(run(state, *rest))
    return events_of(lambda: run(state, *rest))


def keep(folder: pathlib.Path, ready: Ready, events: list[Event]) -> None:
    """Writes the kernels' seconds and the HLO text of a case."""
    run = ready.programs["partitioned"]
    folder.mkdir(parents=True, exist_ok=True)
    with gzip.open(folder / f"{ready.name}.kernels.json.gz", "wt") as file:
        json.dump([dataclasses.astuple(each) for each in events], file)
    with gzip.open(folder / f"{ready.name}.hlo.txt.gz", "wt") as file:
        file.write(run.as_text())


def kept(folder: pathlib.Path, name: str) -> list[Kernel]:
    """Kernels of a case that were written."""
    with gzip.open(folder / f"{name}.kernels.json.gz", "rt") as file:
        events = [Event(*row) for row in json.load(file)]
    with gzip.open(folder / f"{name}.hlo.txt.gz", "rt") as file:
        return list(kernels_of(file.read(), events))


def run_case(name: str) -> None:
    """Compiles a case, waits for a line of input, runs the case and prints its row."""
    mesh = jax.make_mesh((1,), ("data",), (AxisType.Auto,), devices=jax.devices()[:1])
    ready = prepared(name, mesh)
    print("compiled", flush=True)
    if not sys.stdin.readline():  # the process that started this one has ended
        return
    row = row_of(ready, timed(ready))
    events = traced(ready) if FLAGS.kernels else []
    print(json.dumps(row), flush=True)  # the next case runs from here on
    if FLAGS.kernels:
        keep(pathlib.Path(FLAGS.kernels), ready, events)


def compiled(name: str, started: list[subprocess.Popen[str]]) -> subprocess.Popen[str]:
    """Process of a case, at the point where its programs are compiled.

    Args:
      started: all processes, to which this one is added as it starts.
    """
    own = [arg for arg in sys.argv[1:] if not arg.startswith(("--cases", "--out"))]
    command = [sys.executable, "-m", "experiments.one_device", *own, f"--case={name}"]
    pipe = subprocess.PIPE
    shared = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}  # several processes hold programs
    process = subprocess.Popen(
        command, stdin=pipe, stdout=pipe, text=True, env={**os.environ, **shared}
    )
    started.append(process)
    assert process.stdout
    process.stdout.readline()
    return process


def main(argv: list[str]) -> None:
    del argv
    if FLAGS.case:
        run_case(FLAGS.case)
        return
    begin = time.perf_counter()
    rows: list[dict[str, Any]] = []
    pool = concurrent.futures.ThreadPoolExecutor(FLAGS.processes)
    started: list[subprocess.Popen[str]] = []
    waiting = {name: pool.submit(compiled, name, started) for name in FLAGS.cases or CASES}
    for name, future in waiting.items():
        try:
            future.result(timeout=max(0, FLAGS.budget - (time.perf_counter() - begin)))
        except TimeoutError:
            print(f"{name}: not compiled in time", flush=True)
    ready = {name: future.result() for name, future in waiting.items() if future.done()}
    pool.shutdown(wait=False, cancel_futures=True)
    for process in started:  # a compiler that tries kernels on the device slows what is timed
        if process not in ready.values():
            process.kill()
            process.wait()
    print(f"compiled after {time.perf_counter() - begin:.0f} s", flush=True)
    for name, process in ready.items():  # nothing else runs while a program is timed
        assert process.stdin
        assert process.stdout
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write("go\n")
            process.stdin.close()
        text = process.stdout.readline()
        if not text.startswith("{"):
            print(f"{name}: failed", flush=True)
            continue
        rows.append(json.loads(text))
        print(json.dumps(rows[-1]), flush=True)
        if FLAGS.out:
            with open(FLAGS.out, "a") as file:
                file.write(json.dumps(rows[-1]) + "\n")
    for process in ready.values():  # writing kernels
        process.wait()
    if rows:
        width = min(120, os.get_terminal_size().columns) if sys.stdout.isatty() else 120
        console = Console(width=width)
        console.print(table(rows))
        if FLAGS.kernels:
            folder = pathlib.Path(FLAGS.kernels)
            console.print(rates([each for row in rows for each in kept(folder, row["case"])]))
    sys.stdout.flush()
    os._exit(0)  # whatever still compiles


if __name__ == "__main__":
    app.run(main)
