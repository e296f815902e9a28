"""The tactic Pipeline: executed on 8 devices against the plain step, saved and replayed."""

from __future__ import annotations

import pathlib
from typing import Any

import jax
import pytest
from jax.sharding import AbstractMesh

import partir_search as ps
from models.catalog import MODELS
from partir_search.passes.pipeline.module import stage_carries
from partir_search.plan.report.summary import summary
from tests.pipelines.programs import STEPS, arguments, residual_mlps
from tests.pipelines.steps import TOKENS, check, mesh_of, step_of
from tests.support import assert_same


@pytest.mark.devices
def test_data_parallel_stages(tmp_path: pathlib.Path) -> None:
    """Four permutes are emitted, m + p - 1 run each way; gradients are reduced once."""
    mesh = mesh_of((4, 2), ("stage", "data"))
    step = step_of("recomputed", mesh, ps.Pipeline("stage", microbatches=4), TOKENS)
    plan = check(step, "recomputed")
    moves = [c for c in plan.collectives if c.kind == "collective_permute"]
    assert [c.times for c in moves] == [3, 4, 4, 3]
    assert {c.axes for c in moves} == {("stage",)}
    reduced = [c for c in plan.collectives if "data" in c.axes]
    assert len(reduced) == 4  # loss, embedding (sum of look-up and head), two stacks of layers
    assert {c.times for c in reduced} == {1}
    assert plan.pipeline is not None
    assert (plan.pipeline.stages, plan.microbatches) == (4, 4)
    placed = {path: spec for path, _, spec in plan.arguments()}
    assert placed["params/layers/w"][0] == "stage"
    text = step.lower(*arguments()).as_text()
    assert text.count("stablehlo.collective_permute") == 4
    assert "4 stages on 'stage' (1f1b), idle for 43%" in dict(summary(plan))["why this plan"]
    page = tmp_path / "plan.html"
    plan.save_report(page)
    assert "stage 3" in page.read_text()
    plan.save(tmp_path / "plan.json")
    loaded = ps.auto_partition(
        AbstractMesh((4, 2), ("stage", "data")),
        machine="tpu_v5e",
        schedule=ps.load_plan(tmp_path / "plan.json"),
    )(jax.jit(STEPS["recomputed"], donate_argnums=0))
    assert loaded.plan(*arguments()).collectives == plan.collectives


@pytest.mark.devices
@pytest.mark.parametrize(
    ("name", "shape", "chunks", "schedule"),
    [
        ("dropped", (2, 2, 2), 4, "1f1b"),
        pytest.param("tied", (4, 2, 1), 2, "1f1b", marks=pytest.mark.long),
        pytest.param("masked", (2, 4, 1), 1, "gpipe", marks=pytest.mark.long),
        pytest.param("carried", (2, 2, 2), 1, "1f1b", marks=pytest.mark.long),
    ],
)
def test_search_within_stages(
    name: str, shape: tuple[int, int, int], chunks: int, schedule: Any
) -> None:
    """Other axes, and the stages' axis outside of the layers, are searched over."""
    mesh = mesh_of(shape, ("stage", "data", "model"))
    tactic = ps.Pipeline("stage", microbatches=4, chunks=chunks, schedule=schedule)
    plan = check(step_of(name, mesh, tactic, ps.AutomaticPartition()), name)
    moves = [c for c in plan.collectives if c.kind == "collective_permute" and "stage" in c.axes]
    passed = 2 if name == "carried" else 1
    assert sum(c.times for c in moves) == 2 * passed * (4 * chunks + shape[0] - 1)


@pytest.mark.devices
def test_layers_that_stages_do_not_divide() -> None:
    """8 layers in 9 places: the last one passes its operand on."""
    mesh = mesh_of((3, 2), ("stage", "data"))
    step = step_of("tied", mesh, ps.Pipeline("stage", microbatches=4), TOKENS)
    plan = check(step, "tied")
    assert plan.pipeline is not None
    assert plan.pipeline.stages == 3


@pytest.mark.devices
@pytest.mark.long
@pytest.mark.parametrize("within", ["SP", "SP+Z2", "SP+Z3"])
def test_known_strategies_within_stages(within: str) -> None:
    """Sequence parallelism and ZeRO in chunks of stages equal the plain step."""
    mesh = mesh_of((2, 2, 2), ("stage", "data", "model"))
    tactic = ps.Pipeline("stage", microbatches=4, chunks=2)
    searched = step_of("attending", mesh, tactic, ps.AutomaticPartition())
    known = searched.known_plans(*arguments())
    plan = known[f"PP(stage)+BP(data)+MP(model)+{within}"]
    step = ps.auto_partition(mesh, machine="tpu_v5e", schedule=plan)(jax.jit(STEPS["attending"]))
    want = jax.tree.leaves(jax.jit(STEPS["attending"])(*arguments()))
    assert_same(jax.tree.leaves(step(*arguments())), want, tolerance=1e-5)


# Layers written out ----------------------------------------------------------------------------


@pytest.mark.devices
@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "shape", "how"),
    [
        ("llama-tiny", (4, 2, 1), {}),
        ("transformer-tiny", (4, 2, 1), {}),
        ("t5-tiny", (4, 2, 1), {}),
        ("t5-tiny", (4, 2, 1), {"schedule": "gpipe"}),
        ("t5-tiny", (4, 2, 1), {"split_backward": True}),
        ("t5-tiny", (2, 2, 2), {}),
    ],
)
def test_layers_written_out(name: str, shape: tuple[int, ...], how: dict[str, Any]) -> None:
    """Layers of a flax model are rolled into scans, then cut into stages."""
    entry = MODELS[name].resized(layers=4)
    mesh = mesh_of(shape, ("stage", "data", "model"))
    schedule = [ps.Pipeline("stage", microbatches=4, **how), ps.AutomaticPartition()]
    step = ps.auto_partition(mesh, machine="tpu_v5e", schedule=schedule, episodes=20)(
        jax.jit(entry.step)
    )
    args = jax.jit(lambda: entry.args(8))()
    assert step.plan(*args).pipeline is not None
    want = jax.tree.leaves(jax.jit(entry.step)(*args))
    assert_same(jax.tree.leaves(step(*args)), want, tolerance=1e-4)


@pytest.mark.devices
def test_layers_run_again_within_memory(tmp_path: pathlib.Path) -> None:
    """Ops of a layer run again until the plan fits; the count is saved with the pipeline.

    Values of a program this small would all live on the chip of a v5e.
    """
    keys = jax.random.split(jax.random.key(0), 10)
    shapes = [(16, 16)] + [(16, 64), (64, 16)] * 4
    weights = [0.1 * jax.random.normal(k, s) for k, s in zip(keys, shapes, strict=False)]
    x = jax.random.normal(keys[9], (512, 16))

    mesh = mesh_of((4, 2), ("stage", "data"))
    machine = ps.MACHINES["tpu_v5e"].with_traits(vmem_value_fraction=0.0)

    def planned(schedule: Any, limit: float = 1e12) -> Any:
        goals = [ps.Fit(limit), ps.Fastest()]
        return ps.auto_partition(mesh, machine=machine, schedule=schedule, goals=goals)(
            jax.jit(residual_mlps)
        )

    schedule = [ps.Pipeline("stage", microbatches=4), ps.ManualPartition({"x": 0}, "data")]
    free = planned(schedule).plan(weights, x)
    tight = planned(schedule, 0.97 * free.peak_bytes)
    plan = tight.plan(weights, x)
    assert (free.pipeline.again, plan.pipeline.again) == (0, 1)
    assert plan.fits
    want = jax.tree.leaves(jax.jit(residual_mlps)(weights, x))
    assert_same(jax.tree.leaves(tight(weights, x)), want)
    plan.save(tmp_path / "plan.json")
    loaded = planned(ps.load_plan(tmp_path / "plan.json")).plan(weights, x)
    assert loaded.pipeline == plan.pipeline
    assert loaded.cost == plan.cost


def test_layers_written_out_are_planned() -> None:
    """Scores of attention wait in no slot, but sums and results do: no attention runs again."""
    entry = MODELS["llama-tiny"].resized(layers=4)
    mesh = AbstractMesh((4, 2), ("stage", "data"))
    schedule = [ps.Pipeline("stage", microbatches=4)]
    step = ps.auto_partition(mesh, machine="tpu_v5e", schedule=schedule)(jax.jit(entry.step))
    plan = step.plan(*entry.abstract_args(8))
    names = [r.name for r in plan.passes]
    assert names[:4] == ["trace", "unread", "row_lookups", "early_lookups"]
    assert names[4:7] == ["scan_layers", "microbatches", "pipeline"]
    moves = [c.times for c in plan.collectives if c.kind == "collective_permute"]
    assert moves == [3, 4, 4, 3]
    assert plan.attention
    prims = [op.prim for op in plan.module.ops]
    assert (prims.count("attention"), prims.count("attention_grad")) == (2, 2)
    slots = [x.type.shape for x in stage_carries(plan.module.body.ops)]
    assert all(shape.count(entry.config.seq) < 2 for shape in slots)


@pytest.mark.parametrize("pipeline", [True, False])
def test_gradients_of_narrow_layers_are_reduced_once(pipeline: bool) -> None:
    """Sums in bf16 leave the layers' scan unfinished, through the casts to f32."""
    mesh = AbstractMesh((2, 2), ("stage", "data"))
    options: dict[str, Any] = {} if pipeline else {"microbatches": 4}
    first = [ps.Pipeline("stage", microbatches=4)] if pipeline else []
    plan = step_of("narrow", mesh, *first, TOKENS, **options).plan(*arguments())
    reduced = [c for c in plan.collectives if c.axes == ("data",)]
    assert len(reduced) == 4
    assert {c.times for c in reduced} == {1}
