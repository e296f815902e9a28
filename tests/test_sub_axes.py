"""Axes larger than the dims that they should tile: split into sub-axes, planned, run, saved."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

import partir_search as ps
from models import llama
from partir_search.ir.mesh import MeshShape
from partir_search.mcts.game import Move, Score, play, rewind
from partir_search.mcts.goals import Spare, scorer
from partir_search.plan.lower_bound import LaterBound
from partir_search.planning.answers_unsplit import answers_unsplit
from partir_search.planning.exact_answer import ExactAnswer, exact_moves
from partir_search.planning.exact_steps import ExactSteps
from partir_search.planning.game import PlanningGame
from partir_search.planning.planner import Planner
from partir_search.propagation.graph import Graph
from partir_search.propagation.sub_axes import split_into_sub_axes
from partir_search.strategies.catalogue import named_strategies
from tests.support import assert_same, module_of

MESH = MeshShape(("data", "model"), (2, 16)).split({"model": (8, 2)})
SMALL = llama.LlamaConfig(
    layers=1, d_model=16, heads=4, kv_heads=2, d_ff=32, vocab=32, seq=8, dtype=jnp.float32
)


def test_names_of_sub_axes() -> None:
    assert MESH.names == ("data", "model.0", "model.1")
    assert MESH.user == MeshShape(("data", "model"), (2, 16))
    assert MESH.axes("model") == (1, 2)
    assert MESH.axes("data+model.1") == (0, 2)
    for axes, name in [((1, 2), "model"), ((0, 2), "data+model.1"), ((2, 1), "model.1+model.0")]:
        assert MESH.label(axes) == name
        assert MESH.axes(name) == axes
    assert MESH.size((0, 2)) == 4
    assert MESH.sub_axes() == {"model": [8, 2]}
    with pytest.warns(DeprecationWarning, match="sub_axes"):
        assert MESH.parts() == MESH.sub_axes()
    with pytest.raises(ValueError, match=r"'rows' is not in the mesh; its axes are \['data', 'mo"):
        MESH.axes("rows")
    with pytest.raises(ValueError, match=r"size 16 does not split into \(3, 5\)"):
        MESH.user.split({"model": (3, 5)})


@pytest.mark.parametrize(
    ("batch", "heads", "kv", "sizes", "sub_axes"),
    [
        (64, 32, 8, (8, 8), {}),
        (32, 32, 8, (2, 16), {"model": [8, 2]}),
        (32, 32, 8, (2, 32), {"model": [8, 4]}),
        (32, 32, 32, (8, 8), {"model": [4, 2]}),
        (32, 32, 32, (2, 4, 8), {}),
        (4, 32, 8, (8, 32), {"data": [4, 2], "model": [8, 4]}),
        (32, 12, 12, (4, 8), {"model": [4, 2]}),
        (32, 7, 7, (4, 8), {}),
    ],
)
def test_where_axes_split(batch: int, heads: int, kv: int, sizes: Any, sub_axes: Any) -> None:
    """By the batch and by the major factors of reshapes, the kv heads of [heads] to [kv, group]."""

    def f(w: Any, x: Any) -> Any:
        q = (x @ w).reshape(batch, 16, heads, 64).reshape(batch, 16, kv, heads // kv, 64)
        return w * 2, jnp.sin(q)

    args = (jnp.ones((8, heads * 64)), jnp.ones((batch, 16, 8)))
    graph = Graph(module_of(f, *args, ties=[(0, 0)]))
    mesh = MeshShape(("data", "model", "third")[: len(sizes)], sizes)
    assert split_into_sub_axes(graph, mesh).sub_axes() == sub_axes


def test_exact_steps_along_whole_axes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where labels along sub-axes are too many: assignments with equal tiles along all parts."""

    def step(w: Any, v: Any, x: Any) -> Any:
        grads = jax.grad(lambda w, v: (jnp.tanh(x @ w) @ v).sum(), (0, 1))(w, v)
        return jax.tree.map(lambda p, g: p - g, (w, v), grads)

    args = tuple(jax.ShapeDtypeStruct(s, "float32") for s in ((512, 2048), (2048, 512), (32, 512)))
    module = module_of(step, *args, ties=[(0, 0), (1, 1)])
    planner = Planner(module, MeshShape(("data", "model"), (8, 8)), ps.MACHINES["tpu_v5e"])
    assert planner.mesh.sub_axes() == {"model": [4, 2]}
    _, game = planner.game(planner.names)
    known = named_strategies(planner.mesh, planner.names, game.targets)
    split = dataclasses.replace(exact_moves(game, known), bound=None)
    assert split.moves
    bounded = answers_unsplit(planner, game, split, planner.names, (), (), 1000)
    assert bounded.moves == split.moves
    assert bounded.bound is None  # no search reads the bound
    assert isinstance(bounded.lower_bound, LaterBound)
    later = bounded.lower_bound.found
    assert later is bounded.lower_bound.found
    assert later is not None
    assert later.without == ("sub-axes",)
    steps = ExactSteps(game)
    with monkeypatch.context() as limits:  # no bound along sub-axes
        most = sum(steps.tables.variables.sizes) - 1, 10**6
        limits.setattr("partir_search.planning.exact_steps.MAX_BOUNDED", most)
        (report,) = planner.run([ps.AutomaticPartition()], episodes=900).reports
        assert isinstance(report.lower_bound, LaterBound)
        assert (report.bound, report.bound_without) == (later.seconds, later.without)
    assert later.seconds <= (1.0 + 1e-6) * played_score(game, split.moves[0]).objective
    game.goal = scorer([*planner.goals, Spare(1e9, 1e-12, 1.0)])
    assert answers_unsplit(planner, game, split, planner.names, (), (), 1000) is split
    game.goal = scorer(planner.goals)
    most_choices = max(map(len, steps.tables.variables.sets))
    monkeypatch.setattr("partir_search.planning.exact_steps.MAX_CHOICES", most_choices - 1)
    assert not exact_moves(game, known).moves
    found = answers_unsplit(planner, game, ExactAnswer(), planner.names, (), (), 1000)
    assert found.moves
    assert found.without == ("sub-axes",)
    assert not found.proven
    least = min(played_score(game, move).objective for move in found.moves)
    assert found.bound is not None
    assert found.settled == (least <= 1.03 * found.bound)
    tiled = 0
    for move in found.moves:
        assert len(list(play(game, [move]))) == 1
        assert game.state.tiles[1] == game.state.tiles[2]
        assert game.state.loops[1] == game.state.loops[2]
        tiled += max(game.state.tiles[1]) >= 0
        rewind(game, 1)
    assert tiled
    names = "data", "model.0"
    assert not answers_unsplit(planner, game, ExactAnswer(), names, (), (), 1000).moves
    scores = [played_score(game, move) for move in found.moves]
    plan = planner.run([ps.AutomaticPartition()], episodes=900)
    assert plan.cost.seconds <= min(score.objective for score in scores) * (1.0 + 1e-9)
    (report,) = plan.reports
    assert (report.bound, report.bound_without) == (found.bound, ("sub-axes",))


def played_score(game: PlanningGame, move: Move) -> Score:
    """Score after a move; the state is restored."""
    played = len(list(play(game, [move])))
    score = game.score()
    rewind(game, played)
    return score


def train_args() -> tuple[Any, Any]:
    state = jax.jit(lambda: llama.init_state(SMALL, llama.optimizer()))()
    tokens = np.random.default_rng(0).integers(0, SMALL.vocab, (4, SMALL.seq + 1))
    return state, tokens.astype(np.int32)


@pytest.mark.devices
@pytest.mark.parametrize(
    "kind", [pytest.param(AxisType.Auto, marks=pytest.mark.long), AxisType.Explicit]
)
def test_heads_beyond_the_kv_heads(kind: AxisType) -> None:
    """Megatron on 4 devices with 2 kv heads: queries tile 4 ways, keys and values 2 ways."""
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(kind, kind))
    fn = llama.make_train_step(SMALL)
    state, tokens = train_args()
    schedule = [
        ps.ManualPartition({"tokens": 0}, "data"),
        ps.ManualPartition(
            {"state/params/**/query/kernel": 1, "state/params/**/gate/kernel": 1}, "model"
        ),
    ]
    step = ps.auto_partition(mesh, schedule=schedule, machine="tpu_v5e")(fn)
    plan = step.plan(state, tokens)
    assert plan.mesh_shape.sub_axes() == {"model": [2, 2]}
    layer = plan.partition_specs[0][0].params["layer_0"]["attention"]
    assert layer["query"]["kernel"] == P(None, "model")
    assert layer["out"]["kernel"] == P("model")
    assert layer["key"]["kernel"] == P(None, "model.0")
    specs = [str(a.sharding.spec) for a in jax.tree.leaves(step(state, tokens))]
    assert any("model.0" in s for s in specs)
    want, got, plain = (state, tokens), (state, tokens), jax.jit(fn)
    for _ in range(2):
        want, got = (plain(*want)[0], tokens), (step(*got)[0], tokens)
    assert_same(jax.tree.leaves(got[0].params), jax.tree.leaves(want[0].params), 1e-4)


@pytest.mark.devices
def test_a_small_batch_leaves_the_rest_of_its_axis(tmp_path: pathlib.Path) -> None:
    """One axis of 8 over a batch of 4: schedules may name sub-axes; the plan survives its file."""
    mesh = jax.make_mesh((8,), ("all",), axis_types=(AxisType.Auto,))
    fn = llama.make_train_step(SMALL)
    args = train_args()
    schedule = [
        ps.ManualPartition({"tokens": 0}, "all.0+all.1"),
        ps.ManualPartition({"state/params/**/gate/kernel": 1}, "all.2"),
    ]
    step = ps.auto_partition(mesh, schedule=schedule, machine="tpu_v5e")(fn)
    plan = step.plan(*args)
    assert plan.mesh_shape.sub_axes() == {"all": [2, 2, 2]}
    assert plan.partition_specs[0][1] == P(("all.0", "all.1"))
    assert_same(jax.tree.leaves(step(*args)), jax.tree.leaves(jax.jit(fn)(*args)), 1e-4)
    plan.save(tmp_path / "plan.json")
    again = ps.auto_partition(mesh, schedule=ps.load_plan(tmp_path / "plan.json"))(fn).plan(*args)
    assert again.actions == plan.actions
    assert again.partition_specs == plan.partition_specs


def test_more_devices_than_kv_heads_cost_no_more() -> None:
    """LLaMA-3-8B's widths with 8 kv heads: a model axis of 32 is planned as well as one of 8."""
    config = dataclasses.replace(llama.CONFIGS["llama3-8b"], layers=2)
    step = jax.jit(llama.make_train_step(config), donate_argnums=0)
    args = llama.example_args(config, llama.optimizer(), 32)
    seconds = []
    for sizes in [(8, 8), (2, 32)]:
        mesh = AbstractMesh(sizes, ("data", "model"))
        wrapped = ps.auto_partition(mesh, machine="tpu_v5p", episodes=60)(step)
        seconds.append(wrapped.plan(*args).cost.seconds)
    assert max(seconds) <= 1.1 * min(seconds)
