"""Context parallelism inside of the stages of a pipeline, executed on 8 devices."""

from __future__ import annotations

from typing import Any

import jax
import pytest
from jax.sharding import AbstractMesh

import partir_search as ps
from models.catalog import MODELS
from partir_search.propagation.graph import Graph
from partir_search.propagation.state import State
from partir_search.strategies.catalogue import named_strategies
from partir_search.strategies.targets import StrategyTargets
from tests.pipelines.programs import BATCH, LENGTH, STEPS, WIDTH, arguments
from tests.support import assert_same

pytestmark = pytest.mark.devices


def check(shape: dict[str, int], *tactics: Any) -> Any:
    """Runs the step with attention against the plain one; returns its plan."""
    mesh = jax.make_mesh(tuple(shape.values()), tuple(shape))
    step = ps.auto_partition(
        mesh,
        machine="tpu_v5e",
        schedule=[ps.Pipeline("stage", microbatches=4), *tactics],
        progress=False,
    )(jax.jit(STEPS["attending"]))
    want = jax.tree.leaves(jax.jit(STEPS["attending"])(*arguments()))
    plan = step.plan(*arguments())
    assert_same(jax.tree.leaves(step(*arguments())), want, tolerance=1e-5)
    return plan


@pytest.mark.long
def test_keys_are_gathered() -> None:
    """Stages pass on a part of the sequence; queries stay, and keys are gathered in every tick."""
    data = ps.ManualPartition({"tokens": 0}, "data")
    shape = {"stage": 2, "context": 2, "data": 2}
    plan = check(shape, data, ps.ContextParallel("context", ring=False))
    moves = [c for c in plan.collectives if c.kind == "collective_permute"]
    assert {(c.axes, c.bytes) for c in moves} == {
        (("stage",), BATCH // 4 // 2 * LENGTH // 2 * WIDTH * 4)
    }
    gathered = [c for c in plan.collectives if c.axes == ("context",) and c.times > 1]
    assert {c.kind for c in gathered} == {"all_gather", "reduce_scatter"}
    reduced = [c for c in plan.collectives if c.kind == "all_reduce" and "context" in c.axes]
    assert {c.times for c in reduced} == {1}


def test_keys_rotate() -> None:
    """No device holds all keys; the mask from outside of the layers is known as causal."""
    plan = check({"stage": 2, "context": 2, "data": 2}, ps.ContextParallel("context", zigzag=True))
    rings = [c for c in plan.collectives if c.axes == ("context",) and c.times > 1]
    assert {c.kind for c in rings} == {"collective_permute"}
    attention = [op.params["body"] for op in plan.module.ops if "body" in op.params]
    assert [body.causal for body in attention] == [True] * 6


def test_sequence_parallelism_tiles_further() -> None:
    """Between blocks sequences are tiled on the context's axis and on the model's."""
    entry = MODELS["llama-tiny"]
    step = ps.auto_partition(
        AbstractMesh((2, 2, 2), ("data", "context", "model")),
        machine="tpu_v5e",
        schedule=[ps.ContextParallel("context", ring=False)],
    )(jax.jit(entry.step))
    plan = step.plan(*entry.abstract_args(8))
    graph, mesh = Graph(plan.module), ps.MeshShape(("data", "context", "model"), (2, 2, 2))
    state, targets = State(graph, mesh), StrategyTargets(graph)
    names = dict(named_strategies(mesh, mesh.names, targets))
    for move in names["BP(data)+MP(model, head)+CP(context)+SP"]:
        move.apply(targets, state)  # type: ignore[union-attr]
    context, model = state.tiles[1:]
    both = [graph.shapes[c] for c, d in enumerate(context) if d == model[c] == 1]
    assert (8, entry.config.seq, entry.config.d_model) in both
