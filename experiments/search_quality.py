"""How good the search's answers are: regret against exact enumeration.

    python -m experiments.search_quality --seeds=10

Regret: every plan of every small program that moves reach is looked at (spaces of up to --states
states), then the search, which may not enumerate, is run from each seed, without exact steps and
after exact steps. Exact steps assign what no moves reach: their regret may be negative. Exits with
1 if an answer is not the best, or if the bound lies above a plan.
"""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any

import jax
from absl import app, flags
from rich.console import Console
from rich.progress import track
from rich.table import Table

import partir_search as ps
from experiments import planning_flags
from experiments.small_programs import MESHES, enumerated, game_of, modules
from partir_search.mcts.game import Score
from partir_search.mcts.search import Settings, search
from partir_search.planning.exact_answer import ExactAnswer, exact_moves
from partir_search.planning.game import PlanningGame
from partir_search.strategies.catalogue import named_strategies

FLAGS = flags.FLAGS
flags.DEFINE_integer("seeds", 10, "Seeds of the search.")
flags.DEFINE_integer("states", 4000, "Spaces with more states are left out of the regret.")
planning_flags.define(machine="tpu_v5e", episodes=planning_flags.EPISODES)


def spaces() -> Iterator[tuple[str, PlanningGame]]:
    """Games of all small programs on all meshes, with plenty of memory and with little."""
    machine = ps.MACHINES[FLAGS.machine]
    for name, module in modules():
        for mesh in MESHES:
            for memory in ("loose", "tight"):
                game = game_of(module, mesh, machine, tight=memory == "tight")
                yield f"{name}, {mesh}, {memory}", game


def found(game: PlanningGame, seed: int, exact: ExactAnswer) -> tuple[Score, int]:
    """The search's answer, which starts from known strategies and exact steps, and its states."""
    starts = [moves for _, moves in named_strategies(game.mesh, game.axes, game.targets)]
    result = search(
        game,
        episodes=FLAGS.episodes,
        seed=seed,
        starts=[*starts, *((move,) for move in exact.moves)],
        settled=exact.settled,
        settings=dataclasses.replace(Settings(), exact_states=0),
    )
    return result.best.score, result.states


def regret() -> list[dict[str, Any]]:
    rows = []
    for name, game in track(list(spaces()), "enumerating and searching"):
        begin = time.perf_counter()
        record = enumerated(game, FLAGS.states)
        if record is None:
            continue
        spent = time.perf_counter() - begin
        best = record.best.score
        known = named_strategies(game.mesh, game.axes, game.targets)
        exact = exact_moves(game, known, 2)
        alone = [found(game, seed, ExactAnswer()) for seed in range(FLAGS.seeds)]
        after = [found(game, seed, exact) for seed in range(FLAGS.seeds)]
        losses, beyond = (
            max(math.exp(a.scalar() - best.scalar()) - 1 for a, _ in answers)
            for answers in (alone, after)
        )
        least = min(a.objective for a in (best, *(a for a, _ in after)))
        rows.append(
            {
                "space": name,
                "states": len(record.scores),
                "seconds": round(spent, 2),
                "best_us": round(best.objective * 1e6, 2),
                "fits": best.excess == 0,
                "worst_regret": round(losses, 6),
                "after_exact_steps": round(beyond, 6),
                "bound": None if exact.bound is None else round(exact.bound / least - 1, 6),
                "looked_at": max(n for _, n in alone),
            }
        )
    return rows


def show(rows: list[dict[str, Any]], title: str) -> None:
    table = Table(title=title, title_justify="left")
    for column in rows[0]:
        table.add_column(column, justify="left" if column == "space" else "right")
    for row in rows:
        table.add_row(*map(str, row.values()))
    Console(width=140).print(table)


def main(argv: list[str]) -> None:
    del argv
    facts = {"machine": FLAGS.machine, "episodes": FLAGS.episodes, "jax": jax.__version__}
    rows = regret()
    show(rows, f"regret over {FLAGS.seeds} seeds, {len(rows)} spaces")
    for row in rows:
        print(json.dumps(row | facts))
    median = statistics.median(r["states"] for r in rows)
    print(f"{len(rows)} spaces, median {median:.0f} states")
    bounds = [row["bound"] for row in rows if row["bound"] is not None]
    fit = [row["bound"] for row in rows if row["bound"] is not None and row["fits"]]
    exact = sum(bound > -1e-6 for bound in fit)
    print(f"{len(bounds)} bounds; of {len(fit)} whose best plan fits, {exact} are attained")
    regrets = [row[each] for row in rows for each in ("worst_regret", "after_exact_steps")]
    if max(*regrets, *bounds) > 1e-6:
        sys.exit(1)


if __name__ == "__main__":
    app.run(main)
