"""The engine on toy games with known answers; it needs no compiler."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from partir_search.mcts.anneal import anneal
from partir_search.mcts.exact import enumerate_states
from partir_search.mcts.game import Record, Score
from partir_search.mcts.goals import Fastest, Fit, Weighted, scorer
from partir_search.mcts.search import Result, Settings, grow, search
from partir_search.mcts.tree import Tree


class Subset:
    """Choose a subset of `costs`: the answer costs 1 + the distance of its sum from `target`."""

    def __init__(self, costs: Sequence[int], target: int, limit: int | None = None) -> None:
        self.costs, self.target, self.limit = costs, target, limit
        self.taken: list[int] = []
        self.scored = 0

    def moves(self) -> list[int]:
        return [i for i in range(len(self.costs)) if i not in self.taken]

    def draw(self, rng: random.Random) -> int | None:
        moves = self.moves()
        return moves[rng.randrange(len(moves))] if moves else None

    def step(self, move: Any) -> bool:
        if move in self.taken:
            return False
        self.taken.append(move)
        return True

    def undo(self) -> None:
        self.taken.pop()

    def key(self) -> frozenset[int]:
        return frozenset(self.taken)

    def score(self) -> Score:
        self.scored += 1
        total = sum(self.costs[i] for i in self.taken)
        excess = max(0.0, len(self.taken) / self.limit - 1) if self.limit else 0.0
        return Score(excess, 1.0 + abs(total - self.target))

    def bound(self) -> Score | None:
        return None

    def exact(self) -> float:
        sums = (
            sum(c)
            for n in range(len(self.costs) + 1)
            for c in itertools.combinations(self.costs, n)
        )
        return min(1.0 + abs(s - self.target) for s in sums)


class Order(Subset):
    """Order matters: move i only counts if everything smaller was played before it."""

    def key(self) -> Any:
        return tuple(self.taken)

    def score(self) -> Score:
        good = 0
        for i in self.taken:
            if i != good:
                break
            good += 1
        return Score(0.0, 100.0 - 10 * good + len(self.taken))


def test_small_spaces_are_proven() -> None:
    game = Subset([3, 5, 9, 14, 20], 31)
    result = search(game, episodes=10)
    assert result.proven
    assert result.best.score.objective == game.exact() == 1.0 + 0
    assert sum(game.costs[i] for i in result.best.path) == 31
    assert game.taken == []


@pytest.mark.parametrize("seed", range(5))
def test_subset_sum(seed: int) -> None:
    rng = random.Random(seed)
    game = Subset([rng.randrange(50, 1000) for _ in range(16)], 4321)
    settings = Settings(exact_states=0)
    result = search(game, episodes=2000, seed=seed, settings=settings)
    assert not result.proven
    assert result.best.score.objective <= game.exact() + 0.001 * game.target
    assert result.states <= 2000 + settings.rollout + 2


def test_a_round_that_gains_little_is_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """The third of three rounds is left out if the first found something better and the second
    nothing, unless no answer keeps the limits.
    """

    class TooLarge(Subset):
        def score(self) -> Score:
            return dataclasses.replace(super().score(), excess=0.5)

    def run(kind: type[Subset] = Subset, starts: Sequence[tuple[Any, ...]] = ()) -> Result:
        game = kind(list(range(3, 120, 3)), 1000)
        settings = Settings(exact_states=0, tree_share=0.0)
        result = search(game, episodes=1000, seed=1, starts=starts, settings=settings)
        assert game.taken == []
        return result

    result = run()
    assert result.best.score.objective == 2.0  # 1,000 is no multiple of 3
    assert 600 < result.states < 800
    assert run(TooLarge).states >= 1000
    assert run(starts=[result.best.path]).states >= 1000  # nothing is better than what is given
    monkeypatch.setattr("partir_search.mcts.anneal.CONVERGENCE_TOL", -1.0)
    assert run().states >= 1000


@pytest.mark.parametrize("seed", [0, *(pytest.param(i, marks=pytest.mark.long) for i in (1, 2))])
def test_order_is_found(seed: int) -> None:
    result = search(Order([0] * 7, 0), episodes=3000, seed=seed, settings=Settings(exact_states=0))
    assert result.best.path[:7] == tuple(range(7))


def test_limits_come_first() -> None:
    """With at most two moves allowed the best sum within the limit wins over a better one."""
    game = Subset([1, 2, 4, 8, 16], 31, limit=2)
    result = search(game, episodes=400)
    assert result.best.score.excess == 0
    assert result.best.score.objective == 1.0 + 31 - 24


def test_same_seed_same_answer() -> None:
    def run(seed: int) -> Any:
        game = Subset(list(range(3, 60, 4)), 200)
        result = search(game, episodes=300, seed=seed, settings=Settings(exact_states=0))
        return result.best.path, result.history, result.states

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_starts_are_looked_at_and_never_lost() -> None:
    game = Subset([100, 7, 900], 1000)
    result = search(game, episodes=2, starts=[(0, 2)], settings=Settings(exact_states=0))
    assert result.best.path == (0, 2)


def test_known_states_are_not_scored_again() -> None:
    game = Subset([1, 2, 3], 4)
    search(game, episodes=200, settings=Settings(exact_states=0))
    assert game.scored == 8  # all subsets, each once


def test_exhausted_spaces_end() -> None:
    """Nothing is new for thousands of looks: the search reheats without end, and comes to one."""
    result = search(Subset([1, 2, 3], 4), episodes=4000, settings=Settings(exact_states=0))
    assert result.states == 8
    assert result.best.score.objective == 1.0


def test_enumeration_gives_up_in_time() -> None:
    game = Subset(list(range(12)), 30)
    record = Record(game, episodes=10)
    assert not enumerate_states(game, record, 100)
    assert game.taken == []
    assert record.evaluations == 0


def test_annealing_alone_improves_and_restores() -> None:
    game = Order([0] * 6, 0)
    record = Record(game, episodes=1500)
    record.evaluate(())
    anneal(game, record, random.Random(0))
    assert record.best.score.objective <= 100 - 60 + 6
    assert game.taken == []


class Bounded(Subset):
    """Knows at once that no answer is better than nine tenths of its own score."""

    def bound(self) -> Score:
        scored, score = self.scored, self.score()
        self.scored = scored
        return dataclasses.replace(score, objective=0.9 * score.objective)


def test_bounds_spare_work_and_change_nothing() -> None:
    """Annealing comes to the same answers by the same way, whether bounds are known or not."""
    plain, bounded = (kind(list(range(3, 60, 4)), 200) for kind in (Subset, Bounded))
    records = []
    for game in (plain, bounded):
        record = Record(game, episodes=300)
        record.evaluate(())
        anneal(game, record, random.Random(0))
        records.append(record)
    one, other = records
    assert one.history == other.history
    assert one.best == other.best
    assert one.episodes == other.episodes == len(one.scores)
    assert bounded.scored == len(other.scores) < 0.6 * plain.scored


def test_a_bounded_state_is_scored_once_it_may_be_good_enough() -> None:
    game = Bounded([4, 6], 10)  # scores 11, 7, 5, 1; bounds nine tenths of them
    record = Record(game, episodes=10)
    assert record.evaluate((), allowed=math.log(5.0)) == Score(0.0, 0.9 * 11)
    assert (game.scored, record.episodes, record.elites) == (0, 1, {})
    assert record.evaluate((), allowed=math.log(10.5)) == Score(0.0, 11.0)
    assert record.evaluate(()) == Score(0.0, 11.0)
    assert (game.scored, record.episodes) == (1, 1)


def test_golden_tree(golden: Callable[[str], None]) -> None:
    """Visits, values and transpositions of a small tree: any change of the rules shows here."""
    game, tree = Subset([1, 2, 4], 5), Tree()
    record = Record(game, episodes=60)
    settings = dataclasses.replace(Settings(), rollout=1)
    grow(game, record, tree, random.Random(0), settings, 0.2)
    assert tree.visits[0] == max(tree.visits)
    assert tree.best[0] == record.best.score.scalar()
    golden(json.dumps(tree.to_dict(), indent=1))


def test_scores_order() -> None:
    fits, over = Score(0.0, 5.0), Score(0.1, 1.0)
    assert fits < over
    assert Score(0.0, 4.0) < fits
    assert Score(0.1, 2.0) < Score(0.11, 9.0)  # neither fits: time counts as well
    assert min([over, fits], key=Score.rank) is fits


def test_goals() -> None:
    @dataclasses.dataclass
    class Cost:
        seconds: float
        peak_bytes: float

    score = scorer([Fit(100.0), Fastest()])
    assert score(Cost(2.0, 90.0)) == Score(0.0, 2.0)
    assert score(Cost(1.0, 200.0)).excess == pytest.approx(0.6931, abs=1e-4)


def test_only_goals_that_say_so_are_monotone() -> None:
    """Bounds hold for them alone; a user's goal need not say anything."""

    class Even:
        def excess(self, cost: Any) -> float:
            return 0.0

        def objective(self, cost: Any) -> float:
            return 1.0 + abs(cost.seconds - 1.0)

    assert scorer([Fit(100.0), Weighted(Fastest(), 2.0)]).monotone
    assert not scorer([Fit(100.0), Even()]).monotone
    assert not scorer([Weighted(Even(), 1.0)]).monotone
    assert not scorer([Weighted(Fastest(), -1.0)]).monotone


def test_former_names_of_the_record_warn() -> None:
    record = Record(Subset([4, 6], 10), episodes=10)
    with pytest.warns(DeprecationWarning, match="now Record.evaluate"):
        assert record.look(()) == Score(0.0, 11.0)
    for former, value in (("looks", 1), ("spent", False), ("novel", True)):
        with pytest.warns(DeprecationWarning, match=f"Record.{former} is now"):
            assert getattr(record, former) == value
    with pytest.raises(AttributeError, match="'Record' object has no attribute 'nothing'"):
        _ = record.nothing
