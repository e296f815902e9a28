"""Limits of memory on the folded program, corrected by a peak of the whole program.

The peak of the folded program is off by a fraction of a percent. Near a limit an answer may be
within it folded and beyond it whole: the answers within the limit less the error are next. The best
answer is lifted to actions alone, as far as these lead to its tiles.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import TypeVar

from partir_search.mcts.game import Move, Score
from partir_search.mcts.goals import Scorer
from partir_search.mcts.search import Result
from partir_search.planning.exact_answer import ExactAnswer
from partir_search.planning.finalists import choose_finalist
from partir_search.planning.game import PlanningGame
from partir_search.propagation.actions import Action
from partir_search.simulator.cost import Cost
from partir_search.strategies.moves import TileContext

MAX_CORRECTIONS = 2  # of limits, by the peak of an answer on the whole program
MARGIN = 1.0 + 1e-9  # of the factor, against rounding

Path = tuple[Move, ...]
Found = TypeVar("Found")


@dataclasses.dataclass(frozen=True, slots=True)
class Finalist:
    """The best answer of a search by the whole program.

    Attributes:
      cost: of the folded program.
      path: moves from the game's first state.
      actions: on the unfolded program.
    """

    cost: Cost
    path: Path
    actions: Sequence[Action]


@dataclasses.dataclass(frozen=True, slots=True)
class ScaledPeak(Scorer[Cost]):
    """Scorer of costs with the peak times a factor.

    Attributes:
      factor: peak of the whole program over that of the folded one.
    """

    factor: float = 1.0

    def __call__(self, cost: Cost) -> Score:
        return Scorer.__call__(
            self, dataclasses.replace(cost, peak_bytes=cost.peak_bytes * self.factor)
        )


def scaled(goal: Scorer[Cost], whole: Cost, folded: Cost) -> ScaledPeak:
    """Scorer that multiplies folded peaks by one answer's ratio of whole to folded peak.

    Args:
      goal: scorer of the search.
      whole: cost of the answer on the whole program.
      folded: cost of the answer on the folded program.
    """
    return ScaledPeak(goal.goals, MARGIN * whole.peak_bytes / folded.peak_bytes)


def answers_by(game: PlanningGame, result: Result, exact: ExactAnswer) -> Sequence[Path]:
    """Best answers by the game's goal: of exact steps, fitted once more, and of the search."""
    ranks = {
        key: game.goal(game.costs[key]).rank()
        for key in result.paths
        if isinstance(key, int) and key in game.costs
    }
    visited = [result.paths[min(ranks, key=ranks.__getitem__)]] if ranks else []
    return [*((move,) for move in exact.refitted(game.goal, 1)), *visited]


def choose_within(
    game: PlanningGame,
    paths: Sequence[Path],
    result: Result,
    exact: ExactAnswer,
    unfold: Callable[[Path], tuple[Cost, Found]],
    *,
    trust_ranks: bool,
) -> tuple[Cost, Found]:
    """The best answer of a search by whole costs, within the limits if any answer is.

    Args:
      paths: the best answer by folded score, the best known strategy, the best by exact steps,
        and further answers.
      result / exact: all answers.
      unfold: function from an answer to the cost on the whole program, and a result to return.
      trust_ranks: as in `choose_finalist`.

    Returns:
      Folded cost of the winner, and its result of `unfold`.
    """
    goal = game.goal

    @functools.cache
    def whole(path: Path) -> tuple[Score, tuple[Cost, Found]]:
        found = unfold(path)
        return goal(found[0]), found

    for corrected in range(MAX_CORRECTIONS + 1):
        path, (cost, found) = choose_finalist(
            list(dict.fromkeys(paths)),
            lambda path: game.costed(path)[0],
            whole,
            always=2 + len(exact.moves),
            trust_ranks=trust_ranks,
        )
        folded = game.costed(path)[1]
        fits = goal(cost).excess == 0.0
        if fits or game.goal(folded).excess > 0.0 or corrected == MAX_CORRECTIONS:
            break
        game.goal = scaled(goal, cost, folded)
        paths = [path, *answers_by(game, result, exact)]
    game.goal = goal
    return folded, found


def choose_assigned(
    game: PlanningGame,
    paths: Sequence[Path],
    result: Result,
    exact: ExactAnswer,
    assigned: Callable[[Path], Cost],
    unfold: Callable[[Path], tuple[Cost, Found]],
) -> tuple[Cost, Found]:
    """`choose_within` with few answers unfolded.

    The best is unfolded, and competes by its cost then: actions may lead elsewhere. The choice ends
    with a best answer that is unfolded.

    Args:
      assigned: function from an answer to the whole cost of the tiles and loops on the fold, before
        actions lead there; a tenth of the work of `unfold`.
    """
    costs, unfolded = functools.cache(assigned), dict[Path, tuple[Cost, Found]]()

    def known(path: Path) -> tuple[Cost, Path]:
        return unfolded[path][0] if path in unfolded else costs(path), path

    while True:
        folded, path = choose_within(game, paths, result, exact, known, trust_ranks=True)
        if path in unfolded:
            return folded, unfolded[path][1]
        unfolded[path] = unfold(path)


def competing(
    game: PlanningGame,
    result: Result,
    starts: Sequence[Sequence[Move]],
    exact: ExactAnswer,
    count: int,
    *,
    contexts: bool,
) -> list[Path]:
    """Answers to compare on the whole program, in the order of `choose_within`.

    Args:
      starts: known strategies.
      count: most answers of the search.
      contexts: compare the best strategy with context parallelism, whose gathers rings may hide.
    """
    paths = [e.path for e in result.elites[: 1 if result.proven else count]]
    if not result.proven:
        paths[1:1] = [(move,) for move in exact.moves]
    # Of a proven search too: equal on the fold, strategies may differ on the whole program.
    paths.insert(1, min(map(tuple, starts), key=lambda p: game.costed(p)[0].rank()))
    if contexts:
        tiled = [p for p in map(tuple, starts) if any(isinstance(m, TileContext) for m in p)]
        paths += sorted(tiled, key=lambda p: game.costed(p)[0].rank())[:1]
    return paths
