"""The tactic Pipeline: numbers and stages chosen or left out, and refusals."""

from __future__ import annotations

import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh

import partir_search as ps
from partir_search.ir.mesh import MeshShape
from partir_search.plan.report.summary import summary
from partir_search.planning import pipeline as planning
from partir_search.propagation.graph import Graph
from partir_search.simulator.target.machine import MACHINES
from partir_search.strategies.argument_roles import Roles
from partir_search.strategies.targets import StrategyTargets
from tests.pipelines.programs import LAYERS, STEPS, arguments
from tests.pipelines.steps import TOKENS, step_of
from tests.support import device_mesh, floats_of, module_of

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


def test_microbatches_that_do_not_divide() -> None:
    message = refusal(ps.Pipeline("stage", microbatches=3))
    assert "does not divide by 3" in message
    assert re.search(r"tokens, read at .*programs.py:\d+.*, has shape \(16, 5\)", message)
    message = refusal(ps.Pipeline("stage", microbatches=2, chunks=2))
    assert "2 microbatches of a pipeline with 2 chunks" in message
    assert "4 stages" in message


def test_chunks_that_layers_do_not_fill() -> None:
    message = refusal(ps.Pipeline("stage", microbatches=4, chunks=4))
    assert re.search(
        r"4 stages of 4 chunks are too many for the 8 layers at scan at .*py:", message
    )


def test_unknown_axis_and_arguments() -> None:
    assert "depth" in refusal(ps.Pipeline("depth", microbatches=4))
    step = step_of("tied", AbstractMesh((1, 8), ("stage", "data")), ps.Pipeline("stage", 4))
    with pytest.raises(ValueError, match="one device along 'stage', and a pipeline two stages"):
        step.plan(*arguments())
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


def test_layers_are_padded_where_none_divides_them() -> None:
    mesh = AbstractMesh((3, 2), ("stage", "data"))
    plan = step_of("tied", mesh, ps.Pipeline("stage")).plan(*arguments())
    assert plan.pipeline is not None
    assert (plan.pipeline.stages, plan.pipeline.chunks) == (3, 1)  # 9 places; 12 of 2 chunks


def test_no_numbers_to_choose() -> None:
    mesh = AbstractMesh((7, 2), ("stage", "data"))
    with pytest.raises(
        ValueError, match=r"8 layers and a batch of 16 do not.*'stage'.*tokens, read"
    ):
        step_of("tied", mesh, ps.Pipeline("stage")).plan(*arguments())
    step = ps.auto_partition(mesh, machine="tpu_v5e", schedule=[ps.Pipeline()])(jax.jit(jnp.sin))
    with pytest.warns(UserWarning, match="without an optional pipeline: .* no stack of layers"):
        plan = step.plan(jnp.ones((6, 6)))
    assert plan.pipeline is None


def normalised(ws: Any, x: Any) -> Any:
    def layer(h: Any, w: Any) -> Any:
        h = jnp.tanh(h @ w)
        return h - h.mean(0), None

    return (jax.lax.scan(layer, x, ws)[0] ** 2).mean()


def alternating(ws: Any, x: Any) -> Any:
    for i in range(8):
        x = jnp.tanh(x @ ws[i]) if i % 2 else jnp.sin(x @ ws[i]) + x
    return (x**2).mean()


def unlike(ws: Any, x: Any) -> Any:
    for i, fun in enumerate((jnp.sin, jnp.cos, jnp.tanh, jnp.exp)):
        x = fun(x @ ws[i]) + x
    return (x**2).mean()


@pytest.mark.devices
def test_pairs_of_layers_are_stages() -> None:
    mesh = device_mesh(MeshShape(("stage",), (4,)))
    schedule, step = [ps.Pipeline("stage", microbatches=4)], jax.value_and_grad(alternating)
    args = floats_of((8, 4, 4), (16, 4))
    found = ps.auto_partition(mesh, machine="tpu_v5e", schedule=schedule)(step)(*args)
    for result, expected in zip(*map(jax.tree.leaves, (found, step(*args))), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (normalised, r"sub at .*numbers.py:\d+ \(normalised.* needs all microbatches at once"),
        (unlike, r"no stack of layers.*dot_general at .*numbers.py:\d+ \(unlike\) repeats nowh"),
        (unlike, "; a jax.lax.scan over stacked parameters has layers of any ops"),
    ],
)
def test_steps_that_cannot_be_cut_name_op_and_line(loss: Any, message: str) -> None:
    schedule = [ps.Pipeline("stage", microbatches=4)]
    mesh = AbstractMesh((4,), ("stage",))
    found = ps.auto_partition(mesh, machine="tpu_v5e", schedule=schedule)(
        jax.jit(jax.value_and_grad(loss))
    )
    with pytest.raises(ValueError, match=message):
        found.plan(jnp.ones((8, 4, 4)), jnp.ones((16, 4)))
