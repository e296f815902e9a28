"""The tactic Pipeline: executed on 8 devices against the plain step, saved, replayed, refused."""

from __future__ import annotations

import functools
import pathlib
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh

import partir_search as ps
from models.catalog import MODELS
from partir_search.passes.pipeline.module import stage_carries
from partir_search.plan.report.summary import summary
from partir_search.planning import pipeline as planning
from partir_search.propagation.graph import Graph
from partir_search.simulator.target.machine import MACHINES
from partir_search.strategies.argument_roles import Roles
from partir_search.strategies.targets import StrategyTargets
from tests.pipelines.programs import LAYERS, STEPS, arguments, residual_mlps
from tests.support import assert_same, module_of

TOKENS = ps.ManualPartition({"tokens": 0}, "data")


def step_of(name: str, mesh: Any, *schedule: Any, **options: Any) -> Any:
    given = {"machine": "tpu_v5e", "episodes": 20, "stack": False, "progress": False, **options}
    return ps.auto_partition(mesh, schedule=list(schedule), **given)(
        jax.jit(STEPS[name], donate_argnums=0)
    )


def mesh_of(shape: tuple[int, ...], names: tuple[str, ...]) -> jax.sharding.Mesh:
    return jax.make_mesh(shape, names, devices=jax.devices()[: int(np.prod(shape))])


def check(step: Any, name: str) -> Any:
    """Runs a step against the plain one; returns its plan."""
    want = jax.tree.leaves(jax.jit(STEPS[name])(*arguments()))
    plan = step.plan(*arguments())
    assert_same(jax.tree.leaves(step(*arguments())), want, tolerance=1e-5)
    return plan


@pytest.mark.devices
def test_data_parallel_stages(tmp_path: pathlib.Path) -> None:
    """Four permutes are emitted, m + p - 1 run each way; gradients are reduced once."""
    mesh = mesh_of((4, 2), ("stage", "data"))
    step = step_of("recomputed", mesh, ps.Pipeline("stage", microbatches=4), TOKENS)
    plan = check(step, "recomputed")
    moves = [c for c in plan.collectives if c.kind == "collective_permute"]
    assert [c.times for c in moves] == [3, 4, 4, 3]
    assert {c.axes for c in moves} == {("stage",)}
    reduced = [c for c in plan.collectives if c.axes == ("data",)]
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


# A choice ----------------------------------------------------------------------------------------


def chosen(batch: int, *tactics: Any) -> Any:
    """Plan of wide layers on four devices with slow links, too small for the whole step."""
    machine = MACHINES["h100"].with_axis("stage", 20e9, 5e-6)
    schedule = [*tactics, ps.AutomaticPartition()]
    step = ps.auto_partition(
        AbstractMesh((4,), ("stage",)),
        machine=machine,
        schedule=schedule,
        episodes=20,
        goals=[ps.Fit(6e9), ps.Fastest()],
    )(jax.jit(STEPS["recomputed"]))
    f32 = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.float32)
    layers = {"w": f32((LAYERS, 8192, 8192)), "b": f32((LAYERS, 8192))}
    tokens = jax.ShapeDtypeStruct((batch, 65), jnp.int32)
    return step.plan({"embedding": f32((64, 8192)), "layers": layers}, tokens, jax.random.key(0))


def test_optional_pipeline_is_taken_where_it_pays() -> None:
    """With few words a step gradients cost more than the pipeline's idle ticks, with many less."""
    eight, more = (ps.Pipeline("stage", microbatches=m, optional=True) for m in (8, 16))
    without, taken = chosen(128), chosen(128, eight, more)
    assert taken.pipeline is not None
    assert taken.cost.seconds < without.cost.seconds
    given = [ps.Pipeline("stage", microbatches=m) for m in (8, 16)]
    assert taken.cost.seconds == min(chosen(128, p).cost.seconds for p in given)
    assert chosen(512, eight).pipeline is None


def test_numbers_left_open_are_chosen() -> None:
    """The best plan is taken; each pipeline tried is reported, and the step without one."""
    plan = chosen(128, ps.Pipeline())
    assert plan.pipeline is not None
    assert plan.cost.seconds == min(t.cost.seconds for t in plan.pipelines if t.fits)
    assert plan.pipelines[0].closed_seconds is not None
    assert f"tried {plan.pipelines[0]}" in dict(summary(plan))["why this plan"]


def test_chunks_left_open_are_chosen() -> None:
    """Chunks pay where stages wait, and cost a permute of each tick; given chunks are kept."""

    def found(hop: float, **given: Any) -> ps.Plan:
        machine = MACHINES["h100"].with_axis("stage", 4e11, hop)
        step = ps.auto_partition(
            AbstractMesh((4,), ("stage",)),
            machine=machine,
            schedule=[ps.Pipeline("stage", microbatches=4, **given), ps.AutomaticPartition()],
            episodes=10,
        )(jax.jit(STEPS["recomputed"]))
        f32 = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.float32)
        layers = {"w": f32((LAYERS, 4096, 4096)), "b": f32((LAYERS, 4096))}
        tokens = jax.ShapeDtypeStruct((512, 65), jnp.int32)
        params = {"embedding": f32((64, 4096)), "layers": layers}
        return step.plan(params, tokens, jax.random.key(0))

    def chunks(plan: ps.Plan) -> tuple[int, int]:
        assert plan.pipeline is not None
        return plan.pipeline.chunks, plan.microbatches

    near, far = found(1e-6), found(1e-1)
    assert (chunks(near), chunks(far)) == ((2, 4), (1, 4))
    one, two = found(1e-6, chunks=1), found(1e-6, chunks=2)
    assert (chunks(one), chunks(two)) == ((1, 4), (2, 4))
    assert near.cost.seconds == two.cost.seconds < one.cost.seconds
    assert not one.pipelines
    assert near.pipelines


def test_chunks_of_a_manual_schedule_are_planned_in_full() -> None:
    """Without a search the state lies whole on every stage if chunks are several."""
    mesh = AbstractMesh((4, 2), ("stage", "data"))
    step = step_of("recomputed", mesh, ps.Pipeline("stage", microbatches=4), TOKENS)
    plan = step.plan(*arguments())
    assert {t.name.split(" on ")[0] for t in plan.pipelines} == {
        "4 stages",
        "4 stages of 2 chunks each",
    }
    assert plan.cost.seconds == min(t.cost.seconds for t in plan.pipelines)


def test_known_strategies_of_open_chunks_are_of_stages() -> None:
    mesh = AbstractMesh((4, 2), ("stage", "data"))
    step = step_of("tied", mesh, ps.Pipeline("stage", microbatches=4), TOKENS)
    known = step.known_plans(*arguments())
    assert known
    assert all(plan.pipeline is not None for plan in known.values())


def test_optional_pipeline_that_the_program_does_not_admit() -> None:
    three = ps.Pipeline("stage", microbatches=3, optional=True)
    with pytest.warns(UserWarning, match="without an optional pipeline: .* does not divide by 3"):
        assert chosen(32, three).pipeline is None


def test_optional_pipelines_trace_once_and_confirm_the_best(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled: list[Any] = []

    def confirmed(plan: Any, *_: Any) -> Any:
        compiled.append(plan)
        return plan

    traced = 0

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal traced
        traced += 1
        return read_call(*args, **kwargs)

    read_call = planning.read_call
    monkeypatch.setattr(planning, "confirmed", confirmed)
    monkeypatch.setattr(planning, "read_call", counted)
    mesh = AbstractMesh((4, 2), ("stage", "data"))
    offered = [ps.Pipeline("stage", microbatches=m, optional=True) for m in (4, 8)]
    confirm = ps.Confirm(target="tpu_v5e:2x4", cycles=False)
    plan = step_of("tied", mesh, *offered, TOKENS, confirm=confirm).plan(*arguments())
    assert compiled == [plan]
    assert traced == 1


def test_weights_of_strategies() -> None:
    """Parameters by stage are weights; rows of a table and reshaped parameters alone are not."""

    def fun(table: Any, w: Any, tokens: Any) -> Any:
        return (table[tokens] @ w) @ table.reshape(2, 4, 8)[0].T

    module = module_of(fun, jnp.ones((8, 8)), jnp.ones((8, 8)), jnp.zeros(4, jnp.int32))
    graph = Graph(module)
    table, w, tokens = (v.id for v in module.body.args)
    targets = StrategyTargets(graph, Roles((table, w), (), (tokens,)))
    assert {weight.cls for weight in targets.weights} == {graph.class_of[w]}


# Refusals --------------------------------------------------------------------------------------


def refusal(tactic: Any, *others: Any, **options: Any) -> str:
    mesh = AbstractMesh((4, 2), ("stage", "data"))
    with pytest.raises((ValueError, TypeError)) as error:
        step_of("tied", mesh, tactic, *others, **options).plan(*arguments())
    return str(error.value)


def test_more_stages_than_layers() -> None:
    mesh = AbstractMesh((16, 2), ("stage", "data"))
    with pytest.raises(ValueError, match=r"16 stages are too many for the 8 layers at .*py"):
        step_of("tied", mesh, ps.Pipeline("stage", microbatches=4)).plan(*arguments())


@pytest.mark.devices
def test_layers_that_stages_do_not_divide() -> None:
    """8 layers in 9 places: the last one passes its operand on."""
    mesh = mesh_of((3, 2), ("stage", "data"))
    step = step_of("tied", mesh, ps.Pipeline("stage", microbatches=4), TOKENS)
    plan = check(step, "tied")
    assert plan.pipeline is not None
    assert plan.pipeline.stages == 3


def test_microbatches_that_do_not_divide() -> None:
    message = refusal(ps.Pipeline("stage", microbatches=3))
    assert "does not divide by 3" in message
    assert re.search(r"tokens, read at .*programs.py:\d+.*, has shape \(16, 5\)", message)
    message = refusal(ps.Pipeline("stage", microbatches=2, chunks=2))
    assert "2 microbatches of a pipeline with 2 chunks" in message
    assert "4 stages" in message


def test_unknown_axis_and_arguments() -> None:
    assert "depth" in refusal(ps.Pipeline("depth", microbatches=4))
    with pytest.raises(ValueError, match="schedule='zb'"):
        ps.Pipeline("stage", microbatches=4, schedule="zb")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="microbatches"):
        ps.Pipeline("stage", microbatches=1)


def test_places_in_a_schedule() -> None:
    pipeline = ps.Pipeline("stage", microbatches=4)
    batch = ps.ManualPartition({"tokens": 0}, "stage")
    assert "Pipeline comes first in a schedule" in refusal(batch, pipeline)
    stage = jax.NamedSharding(AbstractMesh((4, 2), ("stage", "data")), jax.P("stage"))
    message = refusal(pipeline, in_shardings=(None, stage, None))
    assert "a given sharding or an earlier tactic tiles microbatches on axis 'stage'" in message
    other = ps.Pipeline("data", microbatches=4, optional=True)
    assert "of which one is required" in refusal(pipeline, other)


def test_no_numbers_to_choose() -> None:
    mesh = AbstractMesh((3, 2), ("stage", "data"))
    with pytest.raises(
        ValueError, match=r"8 layers and a batch of 16 do not.*'stage'.*tokens, read"
    ):
        step_of("tied", mesh, ps.Pipeline("stage")).plan(*arguments())
    step = ps.auto_partition(mesh, machine="tpu_v5e", schedule=[ps.Pipeline()])(jax.jit(jnp.sin))
    with pytest.warns(UserWarning, match="without an optional pipeline: .* no stack of layers"):
        plan = step.plan(jnp.ones((6, 6)))
    assert plan.pipeline is None


def test_batch_normalisation_is_named() -> None:
    def step(params: Any, x: Any) -> Any:
        def layer(h: Any, w: Any) -> Any:
            h = jnp.tanh(h @ w)
            return h - h.mean(0), None

        def loss(params: Any) -> Any:
            return (jax.lax.scan(layer, x, params)[0] ** 2).mean()

        return jax.value_and_grad(loss)(params)

    mesh = AbstractMesh((4,), ("stage",))
    schedule = [ps.Pipeline("stage", microbatches=4)]
    found = ps.auto_partition(mesh, machine="tpu_v5e", schedule=schedule)(jax.jit(step))
    with pytest.raises(ValueError, match="needs all microbatches at once"):
        found.plan(jnp.ones((8, 4, 4)), jnp.ones((8, 4)))


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
    assert [r.name for r in plan.passes][:4] == ["trace", "scan_layers", "microbatches", "pipeline"]
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
