"""Plans that other systems find are reachable by the search's own moves, and compute the step."""

from __future__ import annotations

import collections
import functools
import random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from partir_search.ir.core import Module
from partir_search.ir.partition import Layout
from partir_search.ir.verify import verify_partition
from partir_search.lowering.localize import localize
from partir_search.mcts.game import Move
from partir_search.planning.game import PlanningGame
from partir_search.planning.planner import Planner
from partir_search.propagation.graph import Graph
from partir_search.propagation.state import State
from partir_search.simulator.target.machine import MACHINES
from partir_search.strategies.argument_roles import find_roles
from partir_search.strategies.decisions import TileClass
from tests.support import MESH, assert_same, module_of, run_emitted

B, S, D, H, F = 8, 8, 16, 8, 32
rng = np.random.default_rng(0)
NAMES = ("wq", "wk", "wv", "wo", "up", "down", "x")
SHAPES = ((D, H, D // H),) * 3 + ((H, D // H, D), (D, F), (F, D), (B, S, D))


def block(wq: Any, wk: Any, wv: Any, wo: Any, up: Any, down: Any, x: Any) -> Any:
    """One SGD step of a transformer block on a squared loss: new weights."""

    def loss(weights: Any) -> Any:
        wq, wk, wv, wo, up, down = weights
        q, k, v = (jnp.einsum("bsd,dhe->bshe", x, w) for w in (wq, wk, wv))
        p = jax.nn.softmax(jnp.einsum("bqhe,bkhe->bhqk", q, k), axis=-1)
        y = x + jnp.einsum("bshe,hed->bsd", jnp.einsum("bhqk,bkhe->bqhe", p, v), wo)
        z = y + jax.nn.gelu(y @ up) @ down
        return (z * z).mean()

    weights = (wq, wk, wv, wo, up, down)
    return [w - 0.1 * g for w, g in zip(weights, jax.grad(loss)(weights), strict=True)]


@functools.cache
def args() -> tuple[jax.Array, ...]:
    return tuple(jnp.asarray(rng.normal(size=s) * 0.5, jnp.float32) for s in SHAPES)


@functools.cache
def module() -> Module:
    return module_of(block, *args(), ties=[(i, i) for i in range(6)])


@pytest.fixture
def game() -> PlanningGame:
    """The game on the block; nothing repeats in it, so the fold is the program itself."""
    _, found = Planner(module(), MESH, MACHINES["tpu_v5e"]).game(MESH.names)
    assert len(found.graph.module.ops) == len(module().ops)
    return found


def play(game: PlanningGame, *wanted: str) -> None:
    """Plays moves by their words; each must be offered in the state that it is played in."""
    for words in wanted:
        offered = {game.describe(m): m for m in game.moves()}
        assert words in offered, f"{words!r} is not offered; {sorted(offered)}"
        assert game.step(offered[words]), f"{words!r} changes nothing"


def layout(game: PlanningGame, name: str) -> Layout:
    graph_module = game.graph.module
    value = graph_module.body.args[NAMES.index(name)]
    return game.state.partition().layout(value)


def counts(game: PlanningGame) -> dict[str, int]:
    found: dict[str, int] = {}
    for move, _ in localize(game.state.partition()).reshards():
        found[move.step.kind] = found.get(move.step.kind, 0) + 1
    return found


def check(game: PlanningGame) -> None:
    partition = game.state.partition()
    verify_partition(partition)
    assert_same(run_emitted(partition, args()), jax.tree.leaves(jax.jit(block)(*args())))


def interior(game: PlanningGame, shape: tuple[int, ...], dim: int, axis: str) -> str:
    """The first offered move that tiles an interior value of a shape."""
    for move in game.moves():
        words = game.describe(move)
        if words.startswith("tile ") and words.endswith(f" dim {dim} on {axis}"):
            cls = move.cls  # type: ignore[attr-defined]
            if game.graph.shapes[cls] == shape:
                return words
    raise AssertionError(f"no move tiles dim {dim} of {shape} on {axis}")


@pytest.mark.devices
def test_attention_by_data_and_mlp_by_tensor(game: PlanningGame) -> None:
    """Attention data-parallel over both axes, the MLP of the same block tensor-parallel."""
    play(game, "tile a6 dim 0 on batch", "tile a4 dim 1 on model")
    play(game, interior(game, (B, H, S, S), 0, "model"))
    partition = game.state.partition()
    scores = [
        op.results[0]
        for op in game.graph.module.ops
        if op.prim == "dot_general" and op.results[0].type.shape == (B, H, S, S)
    ]
    assert partition.layout(scores[0])[0] == (0, 1)
    assert layout(game, "up") == ((), (1,))
    assert layout(game, "down") == ((1,), ())
    check(game)


@pytest.mark.devices
def test_one_dim_on_two_axes(game: PlanningGame) -> None:
    play(game, "DataParallel batch", "DataParallel model")
    assert layout(game, "x")[0] == (0, 1)
    assert set(counts(game)) == {"all_reduce"}
    check(game)


@pytest.mark.devices
def test_parameters_rest_on_all_axes_and_are_gathered_at_use(game: PlanningGame) -> None:
    """FSDP over the whole mesh: no weight rests whole anywhere."""
    play(game, "DataParallel batch", "DataParallel model", "Zero batch stage=3")
    play(game, "Zero model stage=3")
    for name in NAMES[:6]:
        assert sorted(a for axes in layout(game, name) for a in axes) == [0, 1]
    kinds = counts(game)
    assert kinds["reduce_scatter"] >= 6
    assert kinds["all_gather"] >= 6
    assert "all_reduce" not in kinds
    check(game)


@pytest.mark.devices
def test_activations_along_sequence_between_blocks(game: PlanningGame) -> None:
    """Megatron with sequence parallelism: sums become reduce_scatters along the sequence."""
    play(game, "DataParallel batch", "ModelParallel model head=True")
    whole = counts(game)
    play(game, "SequenceParallel model")
    tiled = counts(game)
    assert whole["all_reduce"] > tiled.get("all_reduce", 0)
    assert tiled["reduce_scatter"] >= 2
    partition = game.state.partition()
    resting = [
        v
        for v in game.graph.module.values
        if v.type.shape == (B, S, D) and partition.layout(v) == ((0,), (1,), ())
    ]
    assert resting
    check(game)


@pytest.mark.devices
def test_parameters_of_one_shape_are_tiled_at_once(game: PlanningGame) -> None:
    """Matrices that no fold joins: the heads of queries, keys and values in one move."""
    play(game, "tile a0 dim 1 on model and 2 alike")
    for name in ("wq", "wk", "wv"):
        assert layout(game, name) == ((), (1,), ())
    assert layout(game, "up") == ((), ())
    check(game)
    words = {game.describe(m) for m in game.moves()}
    assert not any(w.startswith("tile a4") and w.endswith("alike") for w in words)


def test_moves_are_drawn_by_kind(game: PlanningGame) -> None:
    """What decides much is drawn as often as tilings of matrices; only legal moves are drawn."""
    rng, legal, drawn = random.Random(0), set(game.moves()), collections.Counter[str]()
    matrices = {game.graph.class_of[v.id] for v in game.graph.module.body.args}
    for _ in range(2000):
        move = game.draw(rng)
        assert move in legal
        if not isinstance(move, TileClass):
            drawn["wide"] += 1
        else:
            drawn["matrix" if move.cls in matrices else "interior"] += 1
    assert drawn["wide"] == pytest.approx(900, rel=0.1)
    assert drawn["matrix"] == pytest.approx(900, rel=0.1)
    assert drawn["interior"] == pytest.approx(200, rel=0.2)


def test_roles_without_a_loss() -> None:
    """A step that returns its state alone: what most of the new state depends on is a parameter."""

    def step(w: Any, v: Any, mw: Any, mv: Any, x: Any) -> Any:
        gw, gv = jax.grad(lambda w, v: (jnp.tanh(x @ w) @ v).sum(), argnums=(0, 1))(w, v)
        mw, mv = 0.9 * mw + gw, 0.9 * mv + gv
        return w - mw, v - mv, mw, mv

    shapes = ((4, 8), (8, 2), (4, 8), (8, 2), (16, 4))
    args = tuple(jnp.ones(s) for s in shapes)
    graph = Graph(module_of(step, *args, ties=[(i, i) for i in range(4)]))
    values = [graph.class_of[v.id] for v in graph.module.body.args]
    roles = find_roles(graph.module).of(graph.class_of)
    assert roles.parameters == tuple(values[:2])
    assert roles.optimizer == tuple(values[2:4])
    assert roles.data == (values[4],)


def test_games_lead_where_their_moves_lead() -> None:
    """Steps and undos that are looked up end where playing them on a fresh state ends."""
    _, game = Planner(module(), MESH, MACHINES["tpu_v5e"]).game(MESH.names)
    rng, path = random.Random(0), list[Move]()
    for _ in range(300):
        moves = game.moves()
        if path and (not moves or rng.random() < 0.5):
            game.undo()
            path.pop()
        elif game.step(move := moves[rng.randrange(min(len(moves), 6))]):
            path.append(move)
        state = State(game.graph, game.mesh)
        for move in path:
            assert move.apply(game.targets, state)  # type: ignore[attr-defined]
        assert state.key() == game.state.key()
        assert game.depth == len(path)
