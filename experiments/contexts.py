"""Long contexts: sequences on several devices, keys gathered, in a ring, and in zigzag.

    python -m experiments.contexts --model=llama3-8b --seqs=32768,131072 --devices=16

Layers of a published model on one long sequence: seconds, exposed collectives and peak
bytes under the best plan in space with attention as it is written (scores are kept for gradients),
under context parallelism (`ps.ContextParallel`) with keys gathered, in a ring and in zigzag, and
under the best plan of a search that may use all of them. Nothing is allocated and nothing runs;
figures are the simulator's. Prints a table and one JSON line per row.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from typing import Any

from absl import app, flags
from jax.sharding import AbstractMesh
from rich.console import Console
from rich.table import Table

import partir_search as ps
from experiments import planning_flags
from models.catalog import MODELS

FLAGS = flags.FLAGS
flags.DEFINE_string("model", "llama3-8b", "Model of the catalog.")
flags.DEFINE_list("seqs", ["32768", "131072"], "Positions of a sequence.")
flags.DEFINE_integer("devices", 16, "Devices on which a sequence lies.")
flags.DEFINE_integer("layers", 2, "Layers of the model.")
flags.DEFINE_integer("vocab", 8192, "Vocabulary: blocks are compared, not heads.")
flags.DEFINE_list("machines", ["tpu_v5e", "tpu_v5p", "h100"], "Machines.")
planning_flags.define(episodes=200)

WAYS: dict[str, Sequence[ps.Tactic] | None] = {
    "space": None,
    "gathered": [ps.ContextParallel("seq", ring=False)],
    "ring": [ps.ContextParallel("seq")],
    "zigzag": [ps.ContextParallel("seq", zigzag=True)],
    "search": None,
}


def plan_of(way: str, seq: int, machine: str) -> ps.Plan:
    entry = MODELS[FLAGS.model].resized(layers=FLAGS.layers, vocab=FLAGS.vocab, seq=seq)
    mesh = AbstractMesh((FLAGS.devices,), ("seq",))
    step = ps.auto_partition(
        mesh,
        machine=machine,
        schedule=WAYS[way],
        rings=way == "search",
        remat=False,
        episodes=FLAGS.episodes,
        progress=False,
        on_overflow="warn",
        donate_argnums=0,
    )(entry.step)
    return step.plan(*entry.abstract_args(1))


def main(argv: list[str]) -> None:
    del argv
    limits = {m: ps.MACHINES[m].hbm_bytes for m in FLAGS.machines}
    table = Table(title=f"{FLAGS.layers} layers of {FLAGS.model} on {FLAGS.devices} devices")
    table.add_column("machine, positions")
    for way in WAYS:
        table.add_column(f"{way}: ms (collectives), GB", justify="right")
    for machine in FLAGS.machines:
        for seq in map(int, FLAGS.seqs):
            row: dict[str, Any] = {"machine": machine, "seq": seq}
            shown = []
            for way in WAYS:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # of plans that do not fit: the table says so
                    cost = plan_of(way, seq, machine).cost
                ms, exposed = cost.seconds * 1e3, cost.collective_seconds * 1e3
                fits = cost.peak_bytes <= limits[machine]
                row[way] = {"ms": ms, "collective_ms": exposed, "gb": cost.peak_bytes / 1e9}
                row[way]["fits"] = fits
                text = f"{ms:.0f} ({exposed:.1f}), {cost.peak_bytes / 1e9:.1f}"
                shown.append(text if fits else f"{text} (too much)")
            print(json.dumps(row), flush=True)
            table.add_row(f"{machine}, {seq}", *shown)
    Console(width=160).print(table)


if __name__ == "__main__":
    app.run(main)
