"""Backward passes split into gradients of operands and of weights: equal to the plain step."""

from __future__ import annotations

import functools
import json
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import jsonschema
import numpy as np
import pytest
from jax.sharding import AbstractMesh

import partir_search as ps
from models.catalog import MODELS
from partir_search.ir.core import Module
from partir_search.ir.pipeline_schedule import PipelineSchedule
from partir_search.passes.attention import forward_phases
from partir_search.passes.pipeline.form import PipelineForm
from partir_search.passes.pipeline.loop_parts import NoPipeline, layer_pairs, microbatch_loop
from partir_search.passes.pipeline.module import stage_carries
from partir_search.passes.pipeline.split_backward import SplitBackward, split_backward
from partir_search.passes.roll import Again, roll
from partir_search.plan.plan import Plan
from partir_search.plan.report.data import report_data
from partir_search.plan.report.schema import REPORT_SCHEMA
from partir_search.plan.report.summary import summary
from partir_search.plan.rewrites import Rewrites
from partir_search.planning.microbatch import in_time
from partir_search.planning.trace import read_call, split_call
from partir_search.rules.registry import RuleTable
from partir_search.simulator.instruction_seconds import seconds_of_ops, with_regions
from partir_search.theory.pipelines import StageSeconds, pipeline_seconds
from tests.pipelines.programs import BATCH, LAYERS, LENGTH, STEPS, WIDTH, arguments
from tests.pipelines.test_lockstep import in_parts, pipeline, results_of
from tests.support import assert_same

SEQUENCE = 24  # unlike all other sizes


@pytest.mark.parametrize(
    ("name", "numbers", "schedule"),
    [
        ("tied", (4, 8, 1), "1f1b"),
        ("tied", (4, 2, 1), "1f1b"),  # fewer microbatches than stages
        pytest.param("tied", (4, 8, 1), "gpipe", marks=pytest.mark.long),
        ("recomputed", (2, 4, 2), "gpipe"),
        ("attending", (2, 4, 2), "1f1b"),
        pytest.param("dropped", (4, 8, 2), "1f1b", marks=pytest.mark.long),
        pytest.param("masked", (2, 8, 4), "1f1b", marks=pytest.mark.long),
        pytest.param("narrow", (2, 4, 2), "1f1b", marks=pytest.mark.long),
        ("carried", (3, 4, 1), "1f1b"),  # 8 layers in 9 places
        pytest.param("scaled", (2, 4, 3), "1f1b", marks=pytest.mark.long),  # in 12
    ],
)
def test_equal_to_plain_step(name: str, numbers: tuple[int, ...], schedule: str) -> None:
    parts = in_parts(STEPS[name], numbers[1])
    module = pipeline(parts, *numbers, schedule=schedule, split=True)
    want = jax.tree.leaves(jax.jit(STEPS[name])(*arguments()))
    tolerance = 2e-2 if name == "narrow" else 1e-5
    assert_same(results_of(module), want, tolerance=tolerance)


def products(module: Module) -> list[tuple[int, list[int]]]:
    """By loop over ticks, its length and the products of each loop over layers."""
    found = []
    for loop in (op for op in module.body.ops if op.prim == "scan"):
        inner = [op for op in loop.regions[0].ops if op.prim == "scan"]
        found.append(
            (
                loop.params["length"],
                [sum(o.prim == "dot_general" for o in op.regions[0].ops) for op in inner],
            )
        )
    return found


def test_weights_run_in_the_same_ticks_on_all_stages() -> None:
    """One product of a layer forward, two for its operand's gradient (one again), one for W."""
    parts = in_parts(STEPS["recomputed"], 8)
    one = pipeline(parts, 4, 8, 1, split=True)
    assert products(one) == [(3, [1]), (3, [1, 2]), (5, [1, 2, 1]), (3, [2, 1])]
    two = pipeline(parts, 2, 8, 2, split=True)
    found = products(two)
    assert sum(length for length, of in found if of[-1] == 1 and len(of) > 1) == 16  # W: v m ticks
    assert sum(length for length, _ in found) == (2 * 2 - 1) + 2 * 8 + 2 - 1


def test_gradients_wait_in_the_slots_of_the_table() -> None:
    """What W reads of B has p slots; residuals have 2p - 1, as without."""
    slots = {}
    for split in (False, True):
        module = pipeline(in_parts(STEPS["recomputed"], 8), 4, 8, 1, split=split)
        rows = LAYERS // 4, BATCH // 8, LENGTH, WIDTH
        carries = [v.type.shape for v in stage_carries(module.body.ops)]
        slots[split] = {s[1] for s in carries if s[0] == 4 and s[2:] == rows}
    assert slots == {False: {7}, True: {4, 7}}


# Layers in two ----------------------------------------------------------------------------------


def of_model(name: str, again: int) -> tuple[SplitBackward, Any]:
    """Split backward layers of a model written out, and the layers as they were."""
    entry = MODELS[name].resized(layers=4, seq=SEQUENCE)
    args = entry.abstract_args(8)
    call = split_call(entry.step, args, {}, (), ())
    module = read_call(jax.jit(entry.step), call, args, {}, "step").module
    rolled = roll(module, Again(again, attentions=forward_phases(module, RuleTable())))
    _, loop = microbatch_loop(in_time(rolled.module, 4).module)
    ((_, backward),) = layer_pairs(loop.regions[0])
    return split_backward(backward), backward


@pytest.mark.parametrize("again", [0, 1000])
@pytest.mark.parametrize(
    ("name", "late", "kept"), [("llama-tiny", 7, 7), ("transformer-tiny", 4, 10)]
)
def test_layers_of_models(name: str, late: int, kept: int, again: int) -> None:
    """Each matrix has a product that waits; no scores of attention do, norms and biases do not."""
    split, backward = of_model(name, again)
    assert sorted(split.early + split.late) == list(range(len(backward.stacks)))
    assert len(split.late) == late

    def dots(layers: Any) -> int:
        return sum(op.prim == "dot_general" for op in layers.region.ops)

    assert dots(split.weights) == late
    assert dots(split.weights) + dots(split.operands) == dots(backward)
    assert all(v.type.shape.count(SEQUENCE) < 2 for v in split.kept)
    wanted = kept if again == 0 else kept + 5  # results that are computed again wait, too
    whole = sum(v.type.nbytes for v in split.kept) / backward.carry[0].type.nbytes
    assert whole == pytest.approx(wanted, abs=0.1)


def test_layers_without_products_of_weights() -> None:
    def step(params: Any, tokens: Any, key: Any) -> Any:
        def loss(params: Any) -> Any:
            h = params["embedding"][tokens[:, :-1]]
            h, _ = jax.lax.scan(lambda h, p: (h + jnp.sin(h * p["b"]), None), h, params["layers"])
            return (h**2).mean()

        return jax.value_and_grad(loss)(params)

    with pytest.raises(NoPipeline, match=r"no product .* weights alone; leave out split_backward"):
        pipeline(in_parts(step, 4), 2, 4, 1, split=True)


# On devices -------------------------------------------------------------------------------------


def planned(name: str, mesh: Any, tactic: Any, *rest: Any, **options: Any) -> Any:
    given = {"machine": "tpu_v5e", "episodes": 20, "stack": False, "progress": False, **options}
    return ps.auto_partition(mesh, schedule=[tactic, *rest], **given)(
        jax.jit(STEPS[name], donate_argnums=0)
    )


@pytest.mark.devices
@pytest.mark.parametrize(
    ("name", "shape", "chunks"),
    [
        ("recomputed", (4, 2, 1), 1),
        pytest.param("dropped", (2, 2, 2), 2, marks=pytest.mark.long),
        pytest.param("tied", (2, 2, 2), 1, marks=pytest.mark.long),
        pytest.param("masked", (4, 2, 1), 2, marks=pytest.mark.long),
    ],
)
def test_executed(
    name: str, shape: tuple[int, int, int], chunks: int, tmp_path: pathlib.Path
) -> None:
    """Permutes and sums of gradients are those of an unsplit pass; the plan is saved and named."""
    devices = jax.devices()[: int(np.prod(shape))]
    mesh = jax.make_mesh(shape, ("stage", "data", "model"), devices=devices)
    tactic = ps.Pipeline("stage", microbatches=4, chunks=chunks, split_backward=True)
    step = planned(
        name, mesh, tactic, ps.ManualPartition({"tokens": 0}, "data"), ps.AutomaticPartition()
    )
    plan = step.plan(*arguments())
    want = jax.tree.leaves(jax.jit(STEPS[name])(*arguments()))
    assert_same(jax.tree.leaves(step(*arguments())), want, tolerance=1e-5)
    moves = [c for c in plan.collectives if c.kind == "collective_permute" and "stage" in c.axes]
    assert sum(c.times for c in moves) == 2 * (4 * chunks + shape[0] - 1)
    reduced = [c for c in plan.collectives if c.axes == ("data",) and "reduce" in c.kind]
    assert {c.times for c in reduced if c.bytes > 4} == {1}
    assert "(1f1b, split backward)" in dict(summary(plan))["why this plan"]
    page = tmp_path / "plan.html"
    plan.save_report(page)
    assert "gradients of weights of microbatch 3" in page.read_text()
    plan.save_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    weights = [e for e in events if e["name"].split("/")[0] == "W3"]
    assert len(weights) == shape[0] * chunks
    jsonschema.validate(report_data(plan), REPORT_SCHEMA)
    plan.save(tmp_path / "plan.json")
    loaded = ps.auto_partition(
        AbstractMesh(shape, mesh.axis_names),
        machine="tpu_v5e",
        schedule=ps.load_plan(tmp_path / "plan.json"),
    )(jax.jit(STEPS[name], donate_argnums=0)).plan(*arguments())
    assert loaded.pipeline == plan.pipeline
    assert loaded.actions == plan.actions


@pytest.mark.devices
@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "shape"), [("llama-tiny", (4, 2, 1)), ("transformer-tiny", (2, 2, 2))]
)
def test_layers_written_out(name: str, shape: tuple[int, ...]) -> None:
    entry = MODELS[name].resized(layers=4)
    mesh = jax.make_mesh(shape, ("stage", "data", "model"), devices=jax.devices()[:8])
    tactic = ps.Pipeline("stage", microbatches=4, split_backward=True)
    step = ps.auto_partition(
        mesh, machine="tpu_v5e", schedule=[tactic, ps.AutomaticPartition()], episodes=20
    )(jax.jit(entry.step))
    args = jax.jit(lambda: entry.args(8))()
    plan = step.plan(*args)
    prims = [op.prim for op in plan.module.ops]
    assert (prims.count("attention"), prims.count("attention_grad")) == (3, 3)
    want = jax.tree.leaves(jax.jit(entry.step)(*args))
    assert_same(jax.tree.leaves(step(*args)), want, tolerance=1e-4)


def test_plans_saved_without_the_field() -> None:
    form = {"axis": "stage", "stages": 4, "chunks": 1, "schedule": "1f1b", "again": 0}
    found = Rewrites.from_json({"microbatches": 8, "pipeline": [form]})
    assert found.pipeline == (PipelineForm("stage", 4),)


# Seconds ----------------------------------------------------------------------------------------


def wide(microbatches: int, split: bool) -> Plan:
    """Plan of wide layers on four devices with slow links; examples of a microbatch are fixed."""
    machine = ps.MACHINES["h100"].with_axis("stage", 1e15, 0.0)
    tactic = ps.Pipeline("stage", microbatches=microbatches, chunks=1, split_backward=split)
    step = ps.auto_partition(
        AbstractMesh((4,), ("stage",)),
        machine=machine,
        schedule=[tactic],
        goals=[ps.Fit(1e15), ps.Fastest()],
    )(jax.jit(STEPS["tied"]))
    f32 = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.float32)
    layers = {"w": f32((LAYERS, 8192, 8192)), "b": f32((LAYERS, 8192))}
    tokens = jax.ShapeDtypeStruct((4 * microbatches, 1025), jnp.int32)
    return step.plan({"embedding": f32((64, 8192)), "layers": layers}, tokens, jax.random.key(0))


def ticks(plan: Plan) -> list[tuple[int, float]]:
    """Number and simulated seconds of the ticks of each loop."""
    seconds = seconds_of_ops(plan.planned.model, plan.simulation)
    loops = [op for op in plan.module.body.ops if op.prim == "scan"]
    return [(op.params["length"], with_regions(op, seconds) / op.params["length"]) for op in loops]


def test_simulated_seconds_and_bytes_are_those_of_the_closed_form() -> None:
    """(m + p - 1) (F + B) + m (head + W) on equal layers, and p slots of what waits for W."""
    whole, split = wide(8, False), wide(8, True)
    (_, forward), (_, steady), (_, backward) = ticks(whole)
    stage = StageSeconds(forward, backward, head=steady - forward - backward)
    assert total(whole) == pytest.approx(pipeline_seconds(PipelineSchedule(4, 8), stage), rel=1e-9)
    assert [n for n, _ in ticks(split)] == [3, 3, 5, 3]
    first, second, third, last = (s for _, s in ticks(split))
    weights = third - second
    stage = StageSeconds(first, last - weights, weights, head=second - first - (last - weights))
    closed = pipeline_seconds(PipelineSchedule(4, 8, split=True), stage)
    assert total(split) == pytest.approx(closed, rel=1e-9)
    # What waits is written and read once more; three ticks fewer have gradients of weights.
    assert backward < last < 1.06 * backward
    assert total(whole) - total(split) > 2 * weights
    waiting = LAYERS // 4 * 4 * 1024 * 8192 * 4  # of a microbatch: operands' gradients of 2 layers
    assert 0 < split.peak_bytes - whole.peak_bytes < 4 * waiting
    assert wide(16, True).peak_bytes - split.peak_bytes < 1e6  # no slot more


def total(plan: Plan) -> float:
    return sum(n * seconds for n, seconds in ticks(plan))
