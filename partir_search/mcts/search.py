"""Monte Carlo tree search with UCT over a `Game`, followed by annealing on the best answers.

Differences from the textbook (Kocsis & Szepesvari 2006): rewards are log costs scaled between the
worst and the best evaluated, as good answers differ by a few percent; the value of a node is the
best cost below the node, not the mean; children are added progressively; a rollout keeps a random
move only if the move lowers the cost. Plain UCT ended 6 to 16 % behind the known strategies of a
transformer.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable, Hashable, Mapping, Sequence

from partir_search.mcts.anneal import anneal
from partir_search.mcts.exact import best_first, enumerate_states
from partir_search.mcts.game import Elite, Game, Move, Record, Score, play, rewind
from partir_search.mcts.tree import ROOT, Tree


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """Constants of the search.

    Attributes:
      exploration: weight of UCT's exploration term; small, as rewards of good answers lie close
        together.
      widening: (a, b): a node has at most a + b sqrt(visits) children.
      rollout: random moves tried per rollout.
      tree_share: share of the episodes for the tree; annealing has the rest. 0.1 did best of 0,
        0.1, 0.25 and 0.5 (`experiments.search_ablation`, docs/search.md).
      exact_states: most states of a space that is enumerated.
      settled_share: share of the episodes for a search whose best start is a minimum of another
        method. Of 13 programs one gained, 0.1 % (docs/evidence/search.md).
    """

    exploration: float = 0.05
    widening: tuple[float, float] = (2.0, 1.5)
    rollout: int = 12
    tree_share: float = 0.1
    exact_states: int = 400
    settled_share: float = 0.25


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """Result of a search.

    Attributes:
      elites: best answers, best first.
      proven: True if the whole space was enumerated.
      evaluations: evaluated answers, of known states too.
      states: distinct states evaluated.
      history: (distinct states, score) at each improvement.
      tree: tree of the search; empty if the space was enumerated.
      paths: by key of a scored state, the moves that led to the state first.
    """

    elites: tuple[Elite, ...]
    proven: bool
    evaluations: int
    states: int
    history: tuple[tuple[int, Score], ...]
    tree: Tree
    paths: Mapping[Hashable, tuple[Move, ...]]

    @property
    def best(self) -> Elite:
        """Best answer."""
        return self.elites[0]


def search(
    game: Game,
    *,
    episodes: int,
    seed: int = 0,
    starts: Sequence[Sequence[Move]] = (),
    settled: bool = False,
    settings: Settings = Settings(),
    progress: Callable[[Record], None] | None = None,
) -> Result:
    """Searches for the best answer from the game's current state, and returns to that state.

    Args:
      episodes: most distinct states to evaluate. The search ends earlier if most evaluations meet
        known states, or if annealing has converged and no state is left to expand.
      seed: of all random choices.
      starts: lists of moves to evaluate first, e.g. known strategies or elites of an earlier goal;
        free of the budget.
      settled: the best of `starts` is a minimum of another method: the search takes
        `Settings.settled_share` of the episodes, and annealing without gains ends early.
      progress: called with the record after every evaluation.
    """
    budget = round(episodes * (settings.settled_share if settled else 1.0))
    record = Record(game, episodes=max(budget, 1), progress=progress)
    tree = Tree()
    record.evaluate(())
    for start in starts:
        path = list(play(game, start))
        record.evaluate(path)
        rewind(game, len(path))
    record.limit += record.episodes  # states that the caller gave are free
    proven = enumerate_states(game, record, settings.exact_states)
    if not proven:
        rng = random.Random(seed)
        share = record.used + (1.0 - record.used) * settings.tree_share
        grow(game, record, tree, rng, settings, share)
        if not anneal(game, record, rng, settled=settled):
            best_first(game, record)
    return Result(
        tuple(record.ranked()),
        proven,
        record.evaluations,
        record.episodes,
        tuple(record.history),
        tree,
        record.paths,
    )


def grow(
    game: Game, record: Record, tree: Tree, rng: random.Random, settings: Settings, share: float
) -> None:
    """Simulates until the fraction `share` of the budget is used."""
    tree.node(game.key())
    while record.used < share:
        simulate(game, record, tree, rng, settings)


def simulate(
    game: Game, record: Record, tree: Tree, rng: random.Random, settings: Settings
) -> None:
    """Runs one simulation: selection, expansion, rollout and backup."""
    node, nodes, path = ROOT, [ROOT], list[Move]()
    least, per_root_visit = settings.widening
    while True:
        if len(tree.children[node]) < least + per_root_visit * math.sqrt(tree.visits[node]):
            drawn = game.draw(rng)
            if drawn is not None and drawn not in tree.children[node] and game.step(drawn):
                child = tree.node(game.key())
                tree.children[node][drawn] = child
                path.append(drawn)
                nodes.append(child)
                break
        if not tree.children[node]:
            break
        move = _select(record, tree, node, settings)
        game.step(move)
        node = tree.children[node][move]
        path.append(move)
        nodes.append(node)
    scalar = _rollout(game, record, rng, path, settings)
    tree.backup(nodes, scalar)
    rewind(game, len(path))


def _select(record: Record, tree: Tree, node: int, settings: Settings) -> Move:
    """Move to the child of the highest upper confidence bound."""
    log_visits = math.log(max(tree.visits[node], 1))

    def uct(child: int) -> float:
        visits = max(tree.visits[child], 1)
        reward = record.reward(tree.best[child]) if tree.visits[child] else 1.0
        return reward + settings.exploration * math.sqrt(log_visits / visits)

    return max(tree.children[node].items(), key=lambda item: uct(item[1]))[0]


def _rollout(
    game: Game, record: Record, rng: random.Random, path: list[Move], settings: Settings
) -> float:
    """Hill-climbs by random moves, appends each kept move to `path`; returns the lowest cost."""
    best = record.evaluate(path)
    for _ in range(settings.rollout):
        move = None if record.exhausted else game.draw(rng)
        if move is None:
            break
        if not game.step(move):
            continue
        score = record.evaluate([*path, move], best.scalar())
        if score.scalar() < best.scalar():
            best = score
            path.append(move)
        else:
            game.undo()
    return best.scalar()
