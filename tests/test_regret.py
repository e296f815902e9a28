"""The search against exact enumeration: on small programs it finds the best plan there is.

`python -m experiments.search_quality` does this for 68 spaces and 10 seeds.
"""

from __future__ import annotations

import dataclasses

import pytest

from experiments.small_programs import PROGRAMS, module_of
from partir_search.experts import expert_plans
from partir_search.ir.mesh import MeshShape
from partir_search.machine import MACHINES
from partir_search.mcts.env import PlanningGame
from partir_search.mcts.exact import enumerate_states
from partir_search.mcts.game import Record, play, rewind
from partir_search.mcts.search import Settings, search
from partir_search.planner import Planner

SEARCH = dataclasses.replace(Settings(), exact_states=0)  # it may not enumerate
LINE, GRID = MeshShape(("data",), (4,)), MeshShape(("data", "model"), (4, 2))


def small_game(name: str, mesh: MeshShape, tight: bool) -> PlanningGame:
    module, machine = module_of(name), MACHINES["tpu_v5e"]
    axes = range(len(mesh.names))
    _, game = Planner(module, mesh, machine).game(axes)
    if tight:
        limit = int(game.cost().peak_bytes * 0.6)
        machine = dataclasses.replace(machine, hbm_bytes=limit)
        _, game = Planner(module, mesh, machine).game(axes)
    return game


@pytest.mark.parametrize("tight", [False, True])
@pytest.mark.parametrize(
    "name, mesh",
    [
        ("linear", GRID),
        ("mlp 2", GRID),
        ("mlp 3", LINE),
        ("mlp 4 loss", LINE),
        ("experts", LINE),
        ("classifier", GRID),
        ("mixer", LINE),
    ],
)
def test_no_regret(name: str, mesh: MeshShape, tight: bool) -> None:
    assert name in PROGRAMS
    game = small_game(name, mesh, tight)
    record = Record(game, episodes=1)
    assert enumerate_states(game, record, 2000)
    starts = [moves for _, moves in expert_plans(game.axes)]
    for moves in starts:
        taken = list(play(game, moves))
        record.look(taken)
        rewind(game, len(taken))
    best = record.best.score
    for seed in range(2):
        found = search(game, episodes=600, seed=seed, starts=starts, settings=SEARCH).best.score
        assert found.excess == best.excess
        assert found.objective == pytest.approx(best.objective, rel=1e-9)
