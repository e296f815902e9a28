"""Seconds and peak bytes of folded programs over those of the whole programs.

    python -m experiments.fold_error --cases=gpt2-1.5b:64:8x8:tpu_v5e

For the known strategies and the answers of exact steps. A case is MODEL:BATCH:MESH:MACHINE.
Nothing runs. Prints a JSON line per strategy and a table with the largest errors of each case; the
first columns are those of the answer of least seconds, whole.
"""

from __future__ import annotations

import json
import time
from typing import Any

import jax
from absl import app, flags
from rich.console import Console
from rich.table import Table

import partir_search as ps
from models.catalog import MODELS
from partir_search.mcts.game import play, rewind
from partir_search.planning.exact_answer import exact_moves
from partir_search.planning.planner import Planner
from partir_search.planning.trace import split_call, trace_call
from partir_search.propagation.state import State
from partir_search.strategies.catalogue import named_strategies

CASES = (
    *("vit-h14:512:8x8:tpu_v5e", "gpt2-1.5b:64:8x8:tpu_v5e", "bert-large:256:8x8:tpu_v5e"),
    *("transformer-1b:64:8x8:tpu_v5e", "t5-3b:64:8x8:tpu_v5e", "llama3-8b:64:8x8:tpu_v5e"),
    *("mixer-l16:512:8x8:tpu_v5e", "gpt2-1.5b:64:4x2:h100", "bert-large:256:4x2:h100"),
    "t5-3b:64:4x2:h100",
)

FLAGS = flags.FLAGS
flags.DEFINE_list("cases", list(CASES), "MODEL:BATCH:MESH:MACHINE.")
flags.DEFINE_integer("episodes", 1000, "Episodes that exact steps may take.")


def measured(case: str) -> list[dict[str, Any]]:
    """Figures of all strategies of a case."""
    name, batch, sizes, machine = case.split(":")
    mesh = ps.MeshShape(("data", "model"), tuple(map(int, sizes.split("x"))))
    entry = MODELS[name]
    args = entry.abstract_args(int(batch))
    call = split_call(entry.step, args, {}, (), ())
    traced = trace_call(jax.jit(entry.step, donate_argnums=0), call, args, {}, name)
    planner = Planner(traced.module, mesh, ps.MACHINES[machine])
    models, game = planner.game(mesh.names)
    known = named_strategies(planner.mesh, mesh.names, game.targets)
    begin = time.process_time()
    exact = exact_moves(game, known, episodes=FLAGS.episodes)
    spent = time.process_time() - begin
    paths: list[tuple[str, tuple[Any, ...]]] = [(label, tuple(moves)) for label, moves in known]
    paths += [(f"exact {i}", (move,)) for i, move in enumerate(exact.moves)]
    found: list[dict[str, Any]] = []
    for label, path in paths:
        played = len(list(play(game, path)))
        folded = game.cost()
        rewind(game, played)
        state = State(planner.graph, planner.mesh, memo=planner.memo)
        whole = planner.lifted(models, game, path, state)[2]
        found.append(
            {
                "case": case,
                "strategy": label,
                "ms": round(whole.seconds * 1e3, 3),
                "seconds": round(folded.seconds / whole.seconds - 1.0, 5),
                "compute_ms": round((folded.compute_seconds - whole.compute_seconds) * 1e3, 3),
                "exposed_ms": round(
                    (folded.collective_seconds - whole.collective_seconds) * 1e3, 3
                ),
                "gb": round(whole.peak_bytes / 1e9, 3),
                "peak": round(folded.peak_bytes / whole.peak_bytes - 1.0, 5),
                "exact_cpu_s": round(spent, 1),
            }
        )
    return found


def summary(rows: list[dict[str, Any]]) -> Table:
    """Errors by case: of the fastest, and the most negative and positive."""
    table = Table(title="folded over whole, less 1", title_justify="left")
    heads = ("case", "fastest", "ms", "seconds", "least", "most", "GB", "peak", "least", "most")
    for head in heads:
        table.add_column(head, justify="right" if head not in ("case", "fastest") else "left")
    for case in dict.fromkeys(row["case"] for row in rows):
        same = [row for row in rows if row["case"] == case]
        best = min(same, key=lambda row: float(row["ms"]))
        ends = {
            key: (best[key], min(r[key] for r in same), max(r[key] for r in same))
            for key in ("seconds", "peak")
        }
        shown = {key: [f"{x:+.2%}" for x in each] for key, each in ends.items()}
        first = (case, best["strategy"], f"{best['ms']:.2f}", *shown["seconds"])
        table.add_row(*first, f"{best['gb']:.2f}", *shown["peak"])
    return table


def main(argv: list[str]) -> None:
    del argv
    rows = []
    for case in FLAGS.cases:
        for row in measured(case):
            rows.append(row)
            print(json.dumps(row), flush=True)
    Console(width=150).print(summary(rows))


if __name__ == "__main__":
    app.run(main)
