"""Choice of a finalist by scores on the folded and the unfolded program."""

from __future__ import annotations

import dataclasses
import types
from typing import Any

import pytest

import partir_search as ps
from partir_search.mcts.game import Score
from partir_search.mcts.goals import scorer
from partir_search.planning.exact_answer import ExactAnswer
from partir_search.planning.finalists import choose_finalist
from partir_search.planning.fold_limits import choose_assigned, choose_within


@pytest.mark.parametrize(
    ("folded", "whole", "chosen", "costed"),
    [
        ((1.0, 1.05, 1.06), (1.0, 1.05, 0.5), 0, [0, 1]),  # the fold is trusted
        ((1.0, 1.05, 1.06), (1.3, 1.05, 1.2), 1, [0, 1, 2]),
        ((1.0, 1.2, 1.3), (1.6, 1.2, 1.4), 1, [0, 1]),  # the known strategy wins; 1.3 is far behind
        ((1.0, 1.2, 1.01), (1.02, 1.2, 1.0), 0, [0]),  # the known strategy is far behind
        ((1.0, 1.0), (0.55, 0.4), 1, [0, 1]),  # the fold has twice the kernels
    ],
)
def test_the_best_whole_score_wins(
    folded: tuple[float, ...], whole: tuple[float, ...], chosen: int, costed: list[int]
) -> None:
    asked: list[int] = []

    def unfold(answer: int) -> tuple[Score, str]:
        asked.append(answer)
        return Score(0.0, whole[answer]), f"plan {answer}"

    answers = range(len(folded))
    found = choose_finalist(answers, lambda x: Score(0.0, folded[x]), unfold)
    assert found == (chosen, f"plan {chosen}")
    assert asked == costed


def test_an_answer_over_the_limits_loses_to_a_slow_one() -> None:
    scores = [Score(0.2, 1.0), Score(0.0, 5.0)]
    found = choose_finalist(
        range(2), lambda x: Score(0.0, scores[x].objective), lambda x: (scores[x], x)
    )
    assert found == (1, 1)


@dataclasses.dataclass(frozen=True)
class Peak:
    """A cost."""

    seconds: float
    peak_bytes: float


@dataclasses.dataclass
class Game:
    """Four states with folded costs; the whole program needs 3 % more memory."""

    costs: dict[int, Any]
    goal: Any

    def costed(self, path: tuple[int, ...]) -> tuple[Score, Peak]:
        cost = self.costs[path[0]]
        return self.goal(cost), cost


def test_an_answer_that_fits_folded_alone_gives_way_to_one_that_fits() -> None:
    """States of the search, though no finalist: neither the fastest nor the slowest that fits."""
    costs = {0: Peak(1.0, 99.0), 1: Peak(3.0, 50.0), 2: Peak(1.2, 97.0), 3: Peak(1.5, 90.0)}
    goal = scorer((ps.Fit(100.0), ps.Fastest()))
    game, paths = Game(costs, goal), {n: (n,) for n in costs}
    result = types.SimpleNamespace(paths=paths)
    asked: list[int] = []

    def unfold(path: tuple[int, ...]) -> tuple[Peak, int]:
        asked.append(path[0])
        cost = costs[path[0]]
        return dataclasses.replace(cost, peak_bytes=1.03 * cost.peak_bytes), path[0]

    given: Any = (game, [(0,)], result, ExactAnswer(), unfold)
    folded, found = choose_within(*given, trust_ranks=True)
    assert found == 2
    assert folded is costs[2]
    assert asked == [0, 2]
    assert game.goal is goal


def test_all_answers_of_exact_steps_are_costed_whole() -> None:
    """The third is the fastest on the whole program; one far behind is skipped."""
    seconds, whole = (1.0, 1.5, 1.01, 1.05, 1.3), (1.07, 1.5, 1.06, 0.99, 0.5)
    costs = {n: Peak(each, 50.0) for n, each in enumerate(seconds)}
    goal = scorer((ps.Fit(100.0), ps.Fastest()))
    game, paths = Game(costs, goal), [(n,) for n in costs]
    result: Any = types.SimpleNamespace(paths={n: (n,) for n in costs})
    asked: list[int] = []

    def unfold(path: tuple[int, ...]) -> tuple[Peak, int]:
        asked.append(path[0])
        return dataclasses.replace(costs[path[0]], seconds=whole[path[0]]), path[0]

    exact: Any = ExactAnswer(moves=paths[2:])
    given: Any = (game, paths, result, exact, unfold)
    assert choose_within(*given, trust_ranks=True)[1] == 3
    assert asked == [0, 2, 3]


def test_the_best_answer_is_unfolded_alone() -> None:
    costs = {0: Peak(1.0, 50.0), 1: Peak(3.0, 50.0), 2: Peak(1.01, 50.0)}
    whole = {0: 1.07, 1: 3.0, 2: 1.02}
    game = Game(costs, scorer((ps.Fit(100.0), ps.Fastest())))
    exact: Any = ExactAnswer(moves=[(2,)])
    asked: list[int] = []

    def assigned(path: tuple[int, ...]) -> Peak:
        return dataclasses.replace(costs[path[0]], seconds=whole[path[0]])

    def unfold(path: tuple[int, ...], slower: float = 1.0) -> tuple[Peak, int]:
        asked.append(path[0])
        cost = assigned(path)
        return dataclasses.replace(cost, seconds=slower * cost.seconds), path[0]

    given: Any = (game, [(0,), (1,), (2,)], types.SimpleNamespace(paths={}), exact, assigned)
    folded, found = choose_assigned(*given, unfold)
    assert (folded, found) == (costs[2], 2)
    assert asked == [2]

    # Actions that do not lead to the tiles: the second best competes with the best as unfolded.
    asked.clear()
    _, found = choose_assigned(*given, lambda path: unfold(path, 1.5 if path == (2,) else 1.0))
    assert found == 0
    assert asked == [2, 0]
