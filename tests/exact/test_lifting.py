"""Lifting of exact steps' answers and of random moves: the program has the tiles of the fold."""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import partir_search as ps
from models.catalog import MODELS
from partir_search.ir.core import Value
from partir_search.ir.mesh import MeshShape
from partir_search.ir.rule import NONE
from partir_search.lowering.localize import localize
from partir_search.mcts.game import Move, play, rewind
from partir_search.planning.exact_answer import exact_moves
from partir_search.planning.exact_steps import ExactSteps
from partir_search.planning.planner import Planner
from partir_search.planning.trace import split_call, trace_call
from partir_search.propagation.reach import reached_barriers
from partir_search.propagation.state import State
from partir_search.strategies.catalogue import named_strategies
from tests.support import module_of


@functools.cache
def planner_of(name: str) -> Planner:
    entry = MODELS[name]
    step, args = jax.jit(entry.step), entry.abstract_args(16)
    module = trace_call(step, split_call(step, args, {}, (), ()), args, {}, "step").module
    return Planner(module, MeshShape(("data", "model"), (4, 2)), ps.MACHINES["tpu_v5e"])


def tiles_of(state: State, values: Sequence[int]) -> list[list[int]]:
    """[axes][values] tiled dim, or -1."""
    classes = [state.graph.class_of[v] for v in values]
    return [[max(row[c], NONE) if c >= 0 else NONE for c in classes] for row in state.tiles]


@pytest.mark.parametrize("name", ["lstm-tiny", "moe-tiny"])
def test_the_program_has_the_tiles_of_the_fold(name: str) -> None:
    """Of the small LSTM, up to 1,134 values differ without corrections; known strategies too."""
    planner = planner_of(name)
    models, game = planner.game(planner.names)
    pairs = [(v, f) for v, f in enumerate(models.folded.class_of) if f >= 0]
    steps = ExactSteps(game)
    found = steps.improve(steps.labels_here())[0]
    paths: list[Sequence[Move]] = [[steps.move(found.labels, "exact steps")]]
    known = named_strategies(planner.mesh, planner.names, game.targets)
    paths += [moves for _, moves in known[::3]]
    rng = random.Random(0)
    for _ in range(3):
        paths.append([m for _ in range(12) if (m := game.draw(rng)) and game.step(m)])
        rewind(game, len(paths[-1]))
    for path in paths:
        state = State(planner.graph, planner.mesh)
        actions = models.lifter.lift(game, path, state)
        taken = list(play(game, path))
        folded_tiles = tiles_of(game.state, [f for _, f in pairs])
        assert tiles_of(state, [v for v, _ in pairs]) == folded_tiles
        rewind(game, len(taken))
        assert models.lifter.covers
        other = State(planner.graph, planner.mesh)
        with models.lifter.assigned(game, path, other):
            assert tiles_of(other, range(len(pairs))) == tiles_of(state, range(len(pairs)))
            assert planner.model.evaluate(localize(other.partition())) == planner.model.evaluate(
                localize(state.partition())
            )
        again = State(planner.graph, planner.mesh)
        for action in actions:
            action.apply(again)
        assert again.key() == state.key()


@pytest.mark.parametrize("name", ["lstm-tiny", "moe-tiny"])
def test_barriers_out_of_reach_change_nothing(name: str) -> None:
    """Random tilings with random barriers, and with those of the barriers that are reached."""
    planner = planner_of(name)
    graph, rng, dropped = planner.graph, random.Random(1), 0
    for _ in range(4):
        state, classes = State(graph, planner.mesh), range(len(graph.shapes))
        for _ in range(20):
            cls, axis = rng.choice(classes), rng.randrange(2)
            dims = [d for d in range(len(graph.shapes[cls])) if state.may_tile(cls, d, (axis,))]
            if not dims:
                continue
            barriers = sorted(rng.sample(classes, len(classes) // 4))
            start, before, dim = state.key(), state.tiles[axis][:], rng.choice(dims)
            state.tile(cls, dim, (axis,), (), barriers)
            after = state.key()
            reached = reached_barriers(state, (axis,), [before], barriers)
            state.restore(start)
            state.tile(cls, dim, (axis,), (), reached)
            assert state.key() == after
            dropped += len(barriers) - len(reached)
    assert dropped > 0


def recomputed_layers() -> Planner:
    """Planner of six layers of two products, recomputed, and a step of SGD."""

    @jax.checkpoint
    def layer(h: Any, w: Any, v: Any) -> Any:
        return jnp.tanh(jnp.tanh(h @ w.astype(h.dtype)) @ v.astype(h.dtype))

    def loss(weights: Any, x: Any) -> Any:
        for w, v in zip(weights[::2], weights[1::2], strict=True):
            x = layer(x, w, v)
        return x.astype(jnp.float32).sum()

    def step(x: Any, *weights: Any) -> Any:
        return [w - g for w, g in zip(weights, jax.grad(loss)(weights, x), strict=True)]

    shapes = [(512, 2048), (2048, 512)] * 6
    weights = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    module = module_of(step, jax.ShapeDtypeStruct((256, 512), jnp.bfloat16), *weights)
    return Planner(module, MeshShape(("data", "model"), (4, 2)), ps.MACHINES["tpu_v5e"])


def test_results_of_recomputed_layers_move_in_every_layer() -> None:
    """A reshard of a result of a layer's region runs once in each layer, not at once for all."""
    planner = recomputed_layers()
    models, game = planner.game(planner.names)
    (op,) = (op for op in models.folded.module.ops if op.count == 5 and op.regions)
    runs = game.model.memory.regions
    results = [x for x in op.regions[0].results if isinstance(x, Value)]
    assert results
    for x in results:
        assert runs.moves(None, x) == 5
        assert runs.instances_in_flight(None, x) == 1


def test_answers_keep_their_tiles_where_one_layer_differs() -> None:
    """The first layer has no gradient of an operand: five of six layers are one of the fold."""
    planner = recomputed_layers()
    models, game = planner.game(planner.names)
    assert not models.lifter.covers  # the fold lacks an op with loops of its own
    (first, *_) = exact_moves(game, [("the plain step", ())]).moves
    folded = game.costed([first])[1]
    _, _, whole = planner.lifted(models, game, [first], State(planner.graph, planner.mesh))
    assert folded.seconds == pytest.approx(whole.seconds, rel=0.03)
    state = State(planner.graph, planner.mesh)
    left = np.flatnonzero(planner.graph.op_nodes & ~models.lifter.known_ops).tolist()
    with models.lifter.assigned(game, [first], state):  # the first layer's own op has loops too
        assert all(any(row[n] >= 0 for row in state.loops) for n in left)
        assert planner.costed(state)[1].seconds == pytest.approx(whole.seconds, rel=0.02)
    assert state.key() == State(planner.graph, planner.mesh).key()
    known = named_strategies(planner.mesh, planner.names, game.targets)
    assert whole.seconds < 0.9 * min(game.costed(moves)[1].seconds for _, moves in known)
