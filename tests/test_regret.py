"""The search against exact enumeration: on small programs it finds the best plan there is.

`python -m experiments.search_quality` does this for 68 spaces and 10 seeds.
"""

from __future__ import annotations

import dataclasses

import pytest

from experiments.small_programs import enumerated, game_of, module_of
from partir_search.ir.mesh import MeshShape
from partir_search.mcts.search import Settings, search
from partir_search.simulator.target.machine import MACHINES
from partir_search.strategies.catalogue import named_strategies

SEARCH = dataclasses.replace(Settings(), exact_states=0)  # it may not enumerate
LINE, GRID = MeshShape(("data",), (4,)), MeshShape(("data", "model"), (4, 2))


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
    game = game_of(module_of(name), mesh, MACHINES["tpu_v5e"], tight=tight)
    record = enumerated(game, 2000)
    assert record is not None
    starts = [moves for _, moves in named_strategies(game.mesh, game.axes, game.targets)]
    best = record.best.score
    for seed in range(2):
        found = search(game, episodes=600, seed=seed, starts=starts, settings=SEARCH).best.score
        assert found.excess == best.excess
        assert found.objective == pytest.approx(best.objective, rel=1e-9)
