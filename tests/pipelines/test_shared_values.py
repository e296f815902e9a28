"""Pipelines of layers written out that read values of all layers, with gradients added up."""

from __future__ import annotations

import functools
from typing import Any

import jax
import pytest
from jax.sharding import AbstractMesh

import partir_search as ps
from partir_search.ir.core import Module, Value
from partir_search.ir.verify import verify
from partir_search.lowering.verify_local import verify_local
from partir_search.passes.pipeline.form import PipelineForm
from partir_search.passes.roll import layer_scans
from partir_search.plan.rewrites import Rewrites
from partir_search.planning.loops import with_layers, with_loops
from partir_search.planning.trace import Traced, read_call, split_call
from tests.pipelines.programs import BATCH, LAYERS, LENGTH, STEPS, WIDTH, arguments
from tests.pipelines.test_lockstep import results_of
from tests.support import assert_same

NAMES = ["biased", "bias of the first layer", "one bias"]


@functools.cache
def traced(name: str) -> Traced:
    call = split_call(STEPS[name], arguments(), {}, (), ())
    return read_call(jax.jit(STEPS[name]), call, arguments(), {}, "step")


def pipeline(name: str, stages: int, microbatches: int) -> Module:
    rewrites = Rewrites(microbatches=microbatches, pipeline=(PipelineForm("stage", stages),))
    module = with_loops(traced(name), rewrites).module
    verify(module)
    return module


@pytest.mark.parametrize("name", NAMES)
def test_all_layers_are_rolled(name: str) -> None:
    """First addends get an addition to zeros; the bias is computed before its first reader."""
    module = with_layers(traced(name))[0].module
    pairs = layer_scans(module.body)
    layers = [(p.forward.layers, p.backward and p.backward.layers) for p in pairs]
    assert layers == [(LAYERS // 2, LAYERS // 2)] * 2
    for pair in pairs:
        op = module.body.ops[pair.forward.position]
        shapes = [x.type.shape for x in op.operands[: len(pair.forward.consts)]]
        assert (4, 4) in shapes
        assert all(isinstance(x, Value) for x in op.operands)


def test_sums_over_data_and_stages_are_taken_once() -> None:
    """Stages pass on activations alone; each adds up the gradients of its own layers."""
    schedule: list[Any] = [
        ps.Pipeline("stage", microbatches=8),
        ps.ManualPartition({"tokens": 0}, "data"),
    ]
    step = ps.auto_partition(
        AbstractMesh((4, 2), ("stage", "data")), machine="tpu_v5e", schedule=schedule
    )(jax.jit(STEPS["scaled"]))
    plan = step.plan(*arguments())
    verify_local(plan.program)
    moves = [c for c in plan.collectives if c.kind == "collective_permute"]
    assert {c.bytes for c in moves} == {BATCH // 8 // 2 * LENGTH * WIDTH * 4}
    assert {c.times for c in plan.collectives if "data" in c.axes} == {1}
    shared = [c.bytes for c in plan.collectives if set(c.axes) == {"stage", "data"}]
    assert sorted(shared) == [WIDTH * 4, 2 * WIDTH * 4]  # the scale and the matrix


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "stages"), [("biased", 2), ("bias of the first layer", 3), ("one bias", 4)]
)
def test_pipeline_equals_plain_step(name: str, stages: int) -> None:
    want = jax.tree.leaves(jax.jit(STEPS[name])(*arguments()))
    assert_same(results_of(pipeline(name, stages, 4)), want, tolerance=1e-5)
