"""Strategies from which exact steps start, and whether a search is settled afterwards."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

import numpy as np
import pytest

from experiments.small_programs import MESHES, enumerated, game_of, module_of
from partir_search.mcts.game import Score
from partir_search.plan.lower_bound import found_in_full
from partir_search.planning import exact_answer
from partir_search.planning.exact_answer import ExactAnswer, exact_moves
from partir_search.planning.fitted_steps import FittedSteps
from partir_search.planning.game import PlanningGame
from partir_search.planning.interruption import FarBehind, check_starts, search_noted
from partir_search.planning.planner import Planner
from partir_search.simulator.target.machine import MACHINES
from partir_search.strategies.catalogue import named_strategies

LINE, GRID = MESHES[0], MESHES[-1]


def answer(game: PlanningGame) -> ExactAnswer:
    return exact_moves(game, named_strategies(game.mesh, game.axes, game.targets), 2)


def test_farthest_labels_first() -> None:
    """Each start is the farthest from all before; equal labels are no further start."""
    labels = [[0, 0, 0], [0, 0, 1], [1, 1, 1], [1, 1, 0], [0, 0, 0]]
    starts = [(str(i), np.array(each, dtype=np.int64)) for i, each in enumerate(labels)]
    assert [name for name, _ in exact_answer._unlike(starts, 1, 6)] == ["2", "1", "3"]
    assert [name for name, _ in exact_answer._unlike(starts, 3, 6)] == ["3"]


@pytest.mark.parametrize("far", [-1.0, 1e9])
def test_further_strategies_are_tried_far_from_the_bound(
    far: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One turn along each axis from each, all turns from the best, and all turns from the first
    state, once with each axis first.
    """
    rounds, firsts = collections.Counter[int](), list[int]()
    whole = FittedSteps.improve

    def improve(self: FittedSteps, labels: Any, *given: Any, **named: Any) -> Any:
        rounds[named.get("rounds", 0)] += 1
        firsts.extend([named["first"]] if "first" in named else [])
        return whole(self, labels, *given, **named)

    monkeypatch.setattr(FittedSteps, "improve", improve)
    monkeypatch.setattr(exact_answer, "FAR", far)
    monkeypatch.setattr(exact_answer, "PROVEN", -1.0)  # the first answer ends no starts
    found = answer(game_of(module_of("mlp 3"), GRID, MACHINES["tpu_v5e"], tight=False))
    assert found.bound is not None
    assert rounds[1] == (exact_answer.TRIALS if far < 0 else 0)
    assert firsts == ([0, 1] if far < 0 else [])
    assert (exact_answer.NOTHING in {name for _, name in found.found}) == (far < 0)


@pytest.mark.parametrize("leading", [-1.0, 1e9])
def test_multipliers_wait_where_least_energy_does_not_lead(
    leading: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the bound is asked for, which is as tight as with the multipliers at once."""
    raised = list[bool]()
    whole = FittedSteps.bound

    def bound(self: FittedSteps, *given: Any, raises: bool = False) -> Any:
        raised.append(raises)
        return whole(self, *given, raises=raises)

    monkeypatch.setattr(FittedSteps, "bound", bound)
    monkeypatch.setattr(exact_answer, "LEADING", leading)
    monkeypatch.setattr(exact_answer, "NEAR", -1.0)  # however near the bound is
    monkeypatch.setattr(exact_answer, "PROVEN", -1.0)
    game = game_of(module_of("mlp 3"), GRID, MACHINES["tpu_v5e"], tight=False)
    found = answer(game)
    at_once, start = leading < 0, game.state.key()
    assert (True in raised) == at_once
    full = found_in_full(found.lower_bound)
    assert full is not None
    assert found.bound is not None
    assert found.bound <= full.seconds <= found.found[0][0].score.objective * (1.0 + 1e-6)
    assert game.state.key() == start
    exact = enumerated(game, 2000)
    assert exact is None or full.seconds <= exact.best.score.objective * (1.0 + 1e-6)


def test_a_form_far_behind_another_is_left_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exact steps take one start, and no search follows."""
    game, improved = game_of(module_of("mlp 3"), GRID, MACHINES["tpu_v5e"], tight=False), []
    whole = FittedSteps.improve

    def improve(self: FittedSteps, *given: Any, **named: Any) -> Any:
        improved.append(given)
        return whole(self, *given, **named)

    monkeypatch.setattr(FittedSteps, "improve", improve)
    game.beat = Score(0.0, game.score().objective * 1e-3)
    assert answer(game).bound is None
    assert len(improved) == 1
    with pytest.raises(FarBehind):
        search_noted(game, 100, 0, [()], None)
    game.beat = Score(0.0, game.score().objective)
    assert search_noted(game, 100, 0, [()], None).states > 2


def test_no_cost_is_computed_of_starts_far_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a lower bound far behind; and none before exact steps, whose answers are starts too."""
    scored: list[int] = []
    game = game_of(module_of("mlp 3"), GRID, MACHINES["tpu_v5e"], tight=False)
    starts = [moves for _, moves in named_strategies(game.mesh, game.axes, game.targets)]
    least, score = game.score().objective, PlanningGame.score

    def noted(self: PlanningGame) -> Score:
        scored.append(1)
        return score(self)

    monkeypatch.setattr(PlanningGame, "score", noted)
    game.beat = Score(0.0, least * 1e-3)
    check_starts(game, starts, 1000)
    with pytest.raises(FarBehind):
        check_starts(game, starts, 100)
    assert not scored
    game.beat = Score(0.0, least)
    check_starts(game, [*starts, ()], 100)
    assert len(scored) == 1


@pytest.mark.parametrize(
    ("name", "tight", "settled"), [("mlp 3", False, True), ("mlp 4 loss", True, False)]
)
def test_limits_that_cost_much_leave_a_search_open(name: str, tight: bool, settled: bool) -> None:
    """Within 0.6 of the memory the second takes twice the seconds of the best without a limit."""
    found = answer(game_of(module_of(name), LINE, MACHINES["tpu_v5e"], tight=tight))
    best = found.found[0][0].score
    assert best.excess == 0.0
    assert found.settled == settled


def test_limits_out_of_reach_settle_a_search() -> None:
    """The smallest assignment needs far more than the memory."""
    machine = dataclasses.replace(MACHINES["tpu_v5e"], hbm_bytes=10_000)
    found = answer(Planner(module_of("mlp 3"), LINE, machine).game(LINE.names)[1])
    assert found.found[0][0].score.excess > 1.0
    assert found.settled
