"""Exact steps: assignments by elimination on the cost tables, as moves and as plans."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, Mesh

import partir_search as ps
from experiments.random_states import game_of_model
from experiments.small_programs import enumerated, game_of, module_of
from models.catalog import MODELS
from partir_search.ir.mesh import MeshShape
from partir_search.lowering.localize import localize
from partir_search.mcts.game import play, rewind
from partir_search.mcts.goals import scorer
from partir_search.planning import planner
from partir_search.planning.exact_answer import exact_moves
from partir_search.planning.fitted_steps import FittedSteps
from partir_search.planning.game import PlanningGame
from partir_search.planning.planner import Planner
from partir_search.simulator.target.machine import MACHINES
from partir_search.strategies.catalogue import named_strategies
from tests.support import ROUND

LINE, GRID = MeshShape(("data",), (4,)), MeshShape(("data", "model"), (4, 2))
SMALL = [("linear", GRID), ("mlp 3", LINE), ("experts", LINE), ("classifier", GRID)]


def scores(game: PlanningGame) -> tuple[float, list[float]]:
    """Scalar score of the best known strategy, and of each exact move."""
    known = named_strategies(game.mesh, game.axes, game.targets)
    moves = exact_moves(game, known, 4).moves
    found = []
    for path in [*(moves for _, moves in known), *((move,) for move in moves)]:
        played = len(list(play(game, path)))
        assert played == len(path) or path not in [(move,) for move in moves]
        found.append(game.score().scalar())
        rewind(game, played)
    return min(found[: len(known)]), found[len(known) :]


@pytest.mark.parametrize("name, mesh", SMALL)
def test_one_axis_after_the_other_on_small_programs(name: str, mesh: MeshShape) -> None:
    """Never behind the strategy at the start; with the search's moves at most as good as these."""
    game = game_of(module_of(name), mesh, MACHINES["tpu_v5e"], tight=False)
    known, found = scores(game)
    assert found
    assert min(found) <= known + 1e-12
    record = enumerated(game, 2000)
    assert record is not None
    assert min(found) <= record.best.score.scalar() + 2e-3


@pytest.mark.parametrize("machine", ["tpu_v5e", "h100"])
def test_layers(machine: str) -> None:
    """A transformer of two layers; the first state of the game comes back."""
    game = game_of_model(
        "transformer-tiny", 512, MeshShape(("data", "model"), (4, 2)), MACHINES[machine]
    )
    before = game.state.key()
    known, found = scores(game)
    assert game.state.key() == before
    assert found[0] == min(found)
    assert found[0] < known


@pytest.mark.long
def test_limits_are_kept() -> None:
    """Steps over a memory limit go on with prices of bytes, with the tables of another limit."""
    game = game_of_model("transformer-small", 8, GRID, MACHINES["tpu_v5e"])
    known = named_strategies(game.mesh, game.axes, game.targets)
    found = exact_moves(game, known, 1)
    game.step(found.moves[0])
    peak, seconds = game.cost().peak_bytes, game.cost().seconds
    game.undo()
    game.goal = scorer((ps.Fit(0.97 * peak), ps.Fastest()))
    (fitted,) = found.refitted(game.goal, 1)
    game.step(fitted)
    assert game.cost().peak_bytes <= 0.97 * peak
    assert seconds <= game.cost().seconds < 1.1 * seconds
    game.undo()
    few = exact_moves(game, known, 1, 1)  # too few episodes for exact steps
    assert few.refitted(game.goal, 1) == ()


def test_families_change_together() -> None:
    """A parameter, its gradient and moments along all axes of the game; decided tiles never."""
    game = game_of_model("transformer-tiny", 512, GRID, MACHINES["tpu_v5e"])
    state = game.state
    cls = next(c for c in game.targets.roles.parameters if state.may_tile(c, 0, (1,)))
    state.tile(cls, 0, (1,))
    game = PlanningGame(
        game.graph, GRID, game.model, ("data", "model"), game.goal, state, game.targets
    )
    steps = FittedSteps(game)
    variables, labels = steps.tables.variables, steps.labels_here()
    kinds = []
    for block in steps._families:
        free = [x for x, group in enumerate(block) if np.sum(group == group[labels[x]]) > 1]
        assert int(variables.of_class[cls]) not in free
        kinds.append(
            {game.graph.class_of[v.id] for v in game.graph.module.body.args}
            & {c for c, x in enumerate(variables.of_class.tolist()) if x in free}
        )
        sizes = {math.prod(game.graph.shapes[c]) for c in kinds[-1]}
        assert len(sizes) == 1
        assert all(np.ptp(block[x]) == 0 for x in free)  # both axes at once
    assert len(kinds) == 3
    assert max(map(len, kinds)) > 2


def test_decided_choices_stay() -> None:
    """Tilings of the game's first state, classes decided by propagation only, other axes."""
    game = game_of_model("transformer-tiny", 512, GRID, MACHINES["tpu_v5e"])
    state = game.state
    cls = next(c for c in game.targets.roles.parameters if state.may_tile(c, 0, (1,)))
    state.tile(cls, 0, (1,))
    frozen = next(c for c in game.targets.roles.parameters if c != cls and state.free(c, (0, 1)))
    state.frozen = {frozen}
    game = PlanningGame(game.graph, GRID, game.model, ("data",), game.goal, state, game.targets)
    known = named_strategies(GRID, ("data",), game.targets)
    start = state.key()
    before = [row[:] for row in game.state.tiles], [row[:] for row in game.state.loops]
    found = exact_moves(game, known, 2)
    assert found.moves
    assert found.bound is not None
    for move in found.moves:
        for decision in move.apply(None, game.state):
            assert decision.axes == (0,)
            assert frozen != getattr(decision, "cls", None)
        assert game.state.tiles[1] == before[0][1]
        assert game.state.loops[1] == before[1][1]
        program = localize(game.state.partition())
        assert found.bound <= game.model.evaluate(program).seconds * (1.0 + 1e-6)
        game.state.restore(start)
    for _, moves in known:  # propagation reaches the excluded class
        played = len(list(play(game, moves)))
        assert found.bound <= game.cost().seconds * (1.0 + 1e-6)
        rewind(game, played)


def test_actions_by_path_hold_in_the_fold() -> None:
    """An action on an argument by its path, before a search, is in the game's first state."""
    module = game_of_model("transformer-tiny", 512, GRID, MACHINES["tpu_v5e"]).graph.module
    planner = Planner(module, GRID, MACHINES["tpu_v5e"])
    path = next(
        p
        for p, v in zip(module.arg_paths, module.body.args, strict=True)
        if "/" in p and v.type.shape and v.type.shape[0] % 4 == 0
    )
    empty = planner.game(GRID.names)[1].state.key()
    found = [
        planner.game(GRID.names, [ps.Tile(name, 0, "data")])[1].state.key()
        for name in (path, path.replace("/", "."))
    ]
    assert found[0] == found[1] != empty


def test_rings_have_no_tables() -> None:
    mesh = MeshShape(("data", "model"), (2, 2)).with_diagonals(["data~model"])
    game = game_of_model("transformer-tiny", 512, mesh, MACHINES["tpu_v5e"])
    found = exact_moves(game, [("nothing", ())], 4)
    assert not found.moves
    assert found.bound is None


@pytest.mark.devices
def test_a_plan_of_exact_steps_runs(mesh: Mesh) -> None:
    """The plan of a step with an optimizer: fixed loops among its actions, values as plain."""
    machine = dataclasses.replace(ROUND, flops_per_s={"default": 1e7}, link_bytes_per_s=1e8)

    def step(state: dict[str, jax.Array], x: jax.Array) -> tuple[dict[str, jax.Array], jax.Array]:
        def loss(w: dict[str, jax.Array]) -> jax.Array:
            h = jax.nn.relu(x @ w["up"])
            return jnp.mean(jax.nn.log_softmax(h @ w["down"])[:, 0]) ** 2

        value, grads = jax.value_and_grad(loss)(state)
        return jax.tree.map(lambda w, g: w - 0.1 * g, state, grads), value

    rng = np.random.default_rng(0)
    state = {
        "up": jnp.asarray(rng.normal(size=(16, 64)), jnp.float32),
        "down": jnp.asarray(rng.normal(size=(64, 32)), jnp.float32),
    }
    x = jnp.asarray(rng.normal(size=(32, 16)), jnp.float32)
    partitioned = ps.auto_partition(mesh, machine=machine, episodes=300)(step)
    plan = partitioned.plan(state, x)
    assert plan.cost.seconds <= min(
        p.cost.seconds for p in partitioned.known_plans(state, x).values()
    )
    assert any(isinstance(action, ps.FixLoop) for action in plan.actions)
    got, value = partitioned(state, x)
    want, wanted = step(state, x)
    np.testing.assert_allclose(value, wanted, rtol=1e-4)
    for name, w in want.items():
        np.testing.assert_allclose(got[name], w, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "sizes", "loop"),
    [
        ("transformer-tiny", (2, 2), False),
        pytest.param("t5-tiny", (2, 2, 2), False, marks=pytest.mark.long),
        pytest.param("t5-tiny", (2, 2, 2), True, marks=pytest.mark.long),
    ],
)
def test_rings_never_cost_more(name: str, sizes: tuple[int, ...], loop: bool) -> None:
    """A mesh with diagonals has the assignments of the mesh without, and, where a loop accumulates
    sums, the answers of a search there.
    """
    entry, mesh = MODELS[name], AbstractMesh(sizes, ("node", "r", "c")[-len(sizes) :])
    plain, rings = (
        ps.auto_partition(
            mesh,
            machine="tpu_v5e",
            rings=some,
            microbatches=4 if loop else 1,
            episodes=100,
            progress=False,
        )(entry.step).plan(*entry.abstract_args(32))
        for some in (False, True)
    )
    assert rings.cost.seconds <= plain.cost.seconds
    assert rings.bound is None


@pytest.mark.parametrize("episodes", [50, 300])
def test_the_answer_in_space_is_a_finalist(monkeypatch: pytest.MonkeyPatch, episodes: int) -> None:
    """Answers of exact steps and of a search, if further answers of the mesh with diagonals end
    behind.
    """
    compared = planner.competing

    def competing(*args: Any, contexts: bool) -> Any:
        return [()] if contexts else compared(*args, contexts=contexts)

    monkeypatch.setattr(planner, "competing", competing)
    entry, mesh = MODELS["transformer-tiny"], AbstractMesh((2, 2), ("r", "c"))
    plain, rings = (
        ps.auto_partition(mesh, machine="tpu_v5e", rings=some, episodes=episodes, progress=False)(
            entry.step
        ).plan(*entry.abstract_args(512))
        for some in (False, True)
    )
    assert plain.actions
    assert rings.cost.seconds <= plain.cost.seconds
