"""Monte Carlo tree search with UCT over a `Game`, followed by annealing on the best answers.

What differs from the textbook (Kocsis & Szepesvari 2006), because it stayed 6 to 16 % behind the
expert on a transformer: rewards are log costs scaled between the worst and the best seen (good
answers differ by a few percent), a node is worth the best and not the mean below it, children
open progressively, rollouts keep only moves that improve.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable, Sequence

from partir_search.mcts.anneal import anneal
from partir_search.mcts.exact import best_first, enumerate_states
from partir_search.mcts.game import Elite, Game, Move, Record, Score, play, rewind
from partir_search.mcts.tree import ROOT, Tree


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """Constants of the search.

    Attributes:
      exploration: UCT's c, small as rewards of good answers lie close together.
      widening: (a, b): a node opens a + b sqrt(visits) children.
      rollout: random moves tried per rollout, kept only if they improve.
      tree_share: share of the episodes for the tree; annealing has the rest. On 6 programs x 4
        seeds (those of `experiments.search_ablation`) answers were 2.2 % behind the best known at
        0.1, and 3.1, 3.9 and 4.2 % at 0, 0.25 and 0.5.
      exact_states: spaces of at most this many states are enumerated.
    """

    exploration: float = 0.05
    widening: tuple[float, float] = (2.0, 1.5)
    rollout: int = 12
    tree_share: float = 0.1
    exact_states: int = 400


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """Result of a search.

    Attributes:
      elites: best answers, best first.
      proven: whether the whole space was enumerated.
      episodes / states: answers looked at, and distinct states among them.
      history: (episode, score) at each improvement.
    """

    elites: tuple[Elite, ...]
    proven: bool
    episodes: int
    states: int
    history: tuple[tuple[int, Score], ...]
    tree: Tree

    @property
    def best(self) -> Elite:
        return self.elites[0]


def search(
    game: Game,
    *,
    episodes: int,
    seed: int = 0,
    starts: Sequence[Sequence[Move]] = (),
    settings: Settings = Settings(),
    progress: Callable[[Record], None] | None = None,
) -> Result:
    """Searches from the game's current state (to which it returns).

    Args:
      episodes: distinct answers to score at most. A search that finds little that is new, or
        nothing that is better, ends earlier.
      starts: paths to evaluate first (expert strategies, elites of an earlier goal); they do
        not count as episodes.
    """
    record = Record(game, episodes=max(episodes, 1), progress=progress)
    tree = Tree()
    record.look(())
    for start in starts:
        taken = list(play(game, start))
        record.look(taken)
        rewind(game, len(taken))
    record.limit += record.episodes  # what is given is not found: it costs no budget
    proven = enumerate_states(game, record, settings.exact_states)
    if not proven:
        rng = random.Random(seed)
        share = record.used + (1.0 - record.used) * settings.tree_share
        grow(game, record, tree, rng, settings, share)
        if not anneal(game, record, rng):
            best_first(game, record)
    return Result(
        tuple(record.ranked()),
        proven,
        record.looks,
        record.episodes,
        tuple(record.history),
        tree,
    )


def grow(
    game: Game, record: Record, tree: Tree, rng: random.Random, settings: Settings, share: float
) -> None:
    """Grows the tree until `share` of the budget is used."""
    tree.node(game.key())
    while record.used < share:
        simulate(game, record, tree, rng, settings)


def simulate(
    game: Game, record: Record, tree: Tree, rng: random.Random, settings: Settings
) -> None:
    """One simulation: select, expand, roll out, back up."""
    node, nodes, path = ROOT, [ROOT], list[Move]()
    while True:
        a, b = settings.widening
        if len(tree.children[node]) < a + b * math.sqrt(tree.visits[node]):
            drawn = game.draw(rng)
            if drawn is not None and drawn not in tree.children[node] and game.step(drawn):
                node_next = tree.node(game.key())
                tree.children[node][drawn] = node_next
                path.append(drawn)
                nodes.append(node_next)
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
    log_visits = math.log(max(tree.visits[node], 1))

    def uct(child: int) -> float:
        visits = max(tree.visits[child], 1)
        known = record.reward(tree.best[child]) if tree.visits[child] else 1.0
        return known + settings.exploration * math.sqrt(log_visits / visits)

    return max(tree.children[node].items(), key=lambda item: uct(item[1]))[0]


def _rollout(
    game: Game, record: Record, rng: random.Random, path: list[Move], settings: Settings
) -> float:
    """Hill-climbs from the current state by random moves; extends `path` by what it keeps."""
    best = record.look(path)
    for _ in range(settings.rollout):
        move = None if record.spent else game.draw(rng)
        if move is None:
            break
        if not game.step(move):
            continue
        score = record.look([*path, move], best.scalar())
        if score.scalar() < best.scalar():
            best = score
            path.append(move)
        else:
            game.undo()
    return best.scalar()
