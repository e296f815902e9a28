"""What each part of the search is worth: one part changed at a time, at equal episodes.

    python -m experiments.search_ablation --seeds=3

Every variant scores as many distinct strategies as the full search, from the same known ones
(except `no known strategies`) and, except in rows "without exact steps", from the assignments of
exact steps. Prints the geometric mean over programs and seeds of its cost over the best that any
variant found, how often it fits, and its CPU seconds.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
from absl import app, flags
from rich.console import Console
from rich.progress import track
from rich.table import Table

import partir_search as ps
from experiments import planning_flags
from models import llama, transformer
from partir_search.ir.core import Module
from partir_search.mcts.anneal import anneal
from partir_search.mcts.game import Move, Record, Score, play, rewind
from partir_search.mcts.goals import Fastest, scorer
from partir_search.mcts.search import Settings, search
from partir_search.planning.exact_answer import EXACT_STARTS, exact_moves
from partir_search.planning.game import PlanningGame
from partir_search.planning.planner import Planner
from partir_search.planning.trace import split_call, trace_call
from partir_search.propagation.graph import Graph
from partir_search.propagation.state import State
from partir_search.simulator.simulator import CostModel
from partir_search.strategies.catalogue import named_strategies
from partir_search.strategies.decisions import TileClass
from partir_search.strategies.targets import StrategyTargets

FLAGS = flags.FLAGS
flags.DEFINE_integer("seeds", 3, "Seeds of each variant.")
planning_flags.define(episodes=planning_flags.EPISODES)
flags.DEFINE_integer("layers", 4, "Layers of the programs.")

WITHOUT = "without exact steps"

Starts = Sequence[Sequence[Move]]
Variant = Callable[[PlanningGame, Starts, int], Score]


def programs() -> Iterator[tuple[str, Module, ps.MeshShape, str]]:
    """(name, module, mesh, machine): a transformer and LLaMA-3-8B's widths, roomy and tight."""
    wide = transformer.TransformerConfig(
        layers=FLAGS.layers, d_model=2048, heads=16, d_ff=8192, vocab=32000, seq=1024
    )
    big = dataclasses.replace(llama.CONFIGS["llama3-8b"], layers=FLAGS.layers, seq=4096)
    steps: list[tuple[str, Any, Any]] = [
        (
            "transformer",
            transformer.make_train_step(wide),
            transformer.example_args(wide, transformer.optimizer(), 32),
        ),
        ("llama3-8b", llama.make_train_step(big), llama.example_args(big, llama.optimizer(), 16)),
    ]
    for name, fn, args in steps:
        jitted = jax.jit(fn, donate_argnums=0)
        module = trace_call(jitted, split_call(fn, args, {}, (), ()), args, {}, name).module
        for sizes, machine in (((4, 4), "tpu_v5e"), ((8, 8), "tpu_v5e"), ((4, 16), "tpu_v5p")):
            mesh = ps.MeshShape(("data", "model"), sizes)
            yield f"{name} {'x'.join(map(str, sizes))} {machine}", module, mesh, machine


def full(
    game: PlanningGame, starts: Starts, seed: int, settled: bool = False, **changed: Any
) -> Score:
    settings = dataclasses.replace(Settings(), exact_states=0, **changed)
    return search(
        game,
        episodes=FLAGS.episodes,
        seed=seed,
        starts=starts,
        settled=settled,
        settings=settings,
    ).best.score


def starts_alone(game: PlanningGame, starts: Starts, seed: int) -> Score:
    """The best of the starts."""
    del seed
    return _record(game, starts).best.score


def after_exact(variant: Variant, game: PlanningGame, starts: Starts, seed: int) -> Score:
    """A variant that also starts from exact steps."""
    exact = exact_moves(game, [("", moves) for moves in starts or [()]], EXACT_STARTS)
    more = [*starts, *((move,) for move in exact.moves)]
    if variant is full:
        return full(game, more, seed, settled=exact.settled)
    return variant(game, more, seed)


def _record(game: PlanningGame, starts: Starts) -> Record:
    record = Record(game, episodes=FLAGS.episodes)
    record.evaluate(())
    for start in starts:
        taken = list(play(game, start))
        record.evaluate(taken)
        rewind(game, len(taken))
    record.limit += record.episodes
    return record


def annealing(game: PlanningGame, starts: Starts, seed: int) -> Score:
    record = _record(game, starts)
    anneal(game, record, random.Random(seed))
    return record.best.score


def walks(game: PlanningGame, starts: Starts, seed: int) -> Score:
    """Random moves from the start, as many as a plan has."""
    record, draw = _record(game, starts), random.Random(seed)
    while not record.exhausted:
        path: list[Move] = []
        for _ in range(draw.randrange(1, 12)):
            move = game.draw(draw)
            if move is not None and game.step(move):
                path.append(move)
                record.evaluate(path)
        rewind(game, len(path))
    return record.best.score


def beam(game: PlanningGame, starts: Starts, seed: int, width: int = 4) -> Score:
    """The best `width` lists of moves, each extended by every move in random order; 1: greedy."""
    record, draw = _record(game, starts), random.Random(seed)
    front: list[tuple[Move, ...]] = [()]
    while front and not record.exhausted:
        grown: dict[Any, tuple[float, tuple[Move, ...]]] = {}
        for path in front:
            taken = tuple(play(game, path))
            moves = list(game.moves())
            draw.shuffle(moves)
            for move in moves:
                if record.exhausted:
                    break
                if game.step(move):
                    scalar = record.evaluate((*taken, move)).scalar()
                    grown.setdefault(game.key(), (scalar, (*taken, move)))
                    game.undo()
            rewind(game, len(taken))
        front = [path for _, path in sorted(grown.values(), key=lambda g: g[0])[:width]]
    return record.best.score


@dataclasses.dataclass(eq=False)
class _ByPath(PlanningGame):
    """A game in which a state is how it was reached: no transpositions."""

    path: list[Move] = dataclasses.field(default_factory=list)

    def step(self, move: Move) -> bool:
        done = PlanningGame.step(self, move)
        if done:
            self.path.append(move)
        return done

    def undo(self) -> None:
        PlanningGame.undo(self)
        self.path.pop()

    def key(self) -> Any:
        return tuple(self.path)


def variant_games(planner: Planner, names: Sequence[str]) -> dict[str, PlanningGame]:
    """The games that variants play: the usual one, and those with one thing changed."""
    _, usual = planner.game(names)
    _, plain = planner.game(names)
    plain._candidates = [
        [m for m in kind if not isinstance(m, TileClass) or _is_argument(plain.graph, m.cls)]
        for kind in plain._candidates
    ]
    _, careless = planner.game(names)
    careless.goal = scorer([Fastest()])
    _, paths = planner.game(names)
    by_path = _ByPath(
        paths.graph,
        paths.mesh,
        paths.model,
        paths.axes,
        paths.goal,
        paths.state,
        paths.targets,
    )
    graph = Graph(planner.module, planner.table, contract=True)
    model = CostModel(planner.module, graph.rules, planner.machine, analysis=planner.analysis)
    state, targets = State(graph, planner.mesh), StrategyTargets(graph)
    goal = scorer(planner.goals)
    whole = PlanningGame(graph, planner.mesh, model, names, goal, state, targets)
    return {
        "all of it": usual,
        "no interior values": plain,
        "no goals": careless,
        "no transpositions": by_path,
        "no folding": whole,
    }


def _is_argument(graph: Graph, cls: int) -> bool:
    arguments = {v.id for v in graph.module.body.args}
    return any(v in arguments for v in graph.members[cls])


SEARCHES: dict[str, Variant] = {
    "all of it": full,
    "tree only": lambda g, s, seed: full(g, s, seed, tree_share=1.0),
    "annealing only": annealing,
    "random walks": walks,
    "greedy": lambda g, s, seed: beam(g, s, seed, 1),
    "beam of 4": beam,
}


def variants(games: Mapping[str, PlanningGame]) -> Iterator[tuple[str, PlanningGame, Variant]]:
    """(name, game, search): all of it, and variants with one part changed."""
    usual = games["all of it"]
    for name, run in SEARCHES.items():
        yield name, usual, functools.partial(after_exact, run)
    yield "exact steps alone", usual, functools.partial(after_exact, starts_alone)
    yield "no known strategies", usual, lambda g, s, seed: after_exact(full, g, (), seed)
    for name in ("no goals", "no folding"):
        yield name, games[name], functools.partial(after_exact, full)
    for name, run in SEARCHES.items():
        yield f"{WITHOUT}: {name}", usual, run
    yield f"{WITHOUT}: no known strategies", usual, lambda g, s, seed: full(g, (), seed)
    for name, game in games.items():
        if game is not usual:
            yield f"{WITHOUT}: {name}", game, full


def main(argv: list[str]) -> None:
    del argv
    costs: dict[str, dict[tuple[str, int], Score]] = {}
    spent: dict[str, float] = {}
    for program, module, mesh, machine in track(list(programs()), "searching"):
        planner = Planner(module, mesh, ps.MACHINES[machine])
        games = variant_games(planner, mesh.names)
        starts = [
            moves
            for _, moves in named_strategies(planner.mesh, mesh.names, games["all of it"].targets)
        ]
        judge = scorer(planner.goals)
        for name, game, run in variants(games):
            for seed in range(FLAGS.seeds):
                begin = time.process_time()
                score = run(game, starts, seed)
                spent[name] = spent.get(name, 0.0) + time.process_time() - begin
                if name.endswith("no goals"):
                    score = min(judge(c) for c in game.costs.values() if _same(c, score))
                costs.setdefault(name, {})[program, seed] = score
                game.costs.clear()
    best: dict[str, float] = {}
    for scores in costs.values():
        for (program, _), score in scores.items():
            if score.excess <= 0:
                best[program] = min(best.get(program, math.inf), score.objective)
    table = Table(title=f"{FLAGS.episodes} strategies, {FLAGS.seeds} seeds", title_justify="left")
    for column in ("variant", "slower than the best", "worst", "fits", "seconds"):
        table.add_column(column, justify="right" if column != "variant" else "left")
    for name, scores in costs.items():
        fitting = {k: s for k, s in scores.items() if s.excess <= 0}
        ratios = [s.objective / best[k[0]] for k, s in fitting.items()]
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else math.nan
        row = {
            "variant": name,
            "slower": round(mean - 1, 4),
            "worst": round(max(ratios, default=math.nan) - 1, 4),
            "fits": f"{len(fitting)}/{len(scores)}",
            "seconds": round(spent[name] / len(scores), 2),
            "jax": jax.__version__,
        }
        print(json.dumps(row))
        slower, worst = f"{row['slower']:+.1%}", f"{row['worst']:+.1%}"
        table.add_row(name, slower, worst, str(row["fits"]), str(row["seconds"]))
    Console(width=110).print(table)


def _same(cost: ps.Cost, score: Score) -> bool:
    return cost.seconds == score.objective


if __name__ == "__main__":
    app.run(main)
