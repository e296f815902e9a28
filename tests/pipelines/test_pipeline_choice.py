"""Numbers of pipelines by closed forms."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh

import partir_search as ps
from partir_search.ir.pipeline_schedule import PipelineSchedule
from partir_search.passes.pipeline.form import PipelineForm
from partir_search.passes.roll import roll
from partir_search.plan.rewrites import Rewrites
from partir_search.planning import contest, pipeline_choice
from partir_search.planning.layer_kernels import LayerKernels, layer_kernels
from partir_search.planning.loops import Layered, with_loops
from partir_search.planning.pipeline_choice import (
    Stack,
    candidates,
    planned_candidates,
    stack_of,
)
from partir_search.planning.trace import Traced, read_call, split_call
from partir_search.theory.pipelines import StageSeconds, pipeline_seconds
from tests.pipelines.programs import STEPS, arguments, residual_mlps
from tests.support import module_of

# 32 layers of width 4,096 over 64 sequences of 2,048: operations, and bytes in bf16.
WIDTH, TOKENS = 4096, 64 * 2048
LAYER = 12 * WIDTH * WIDTH
STACK = Stack(
    layers=32,
    batch=64,
    forward=32 * 2.0 * LAYER * TOKENS,
    backward=32 * 4.0 * LAYER * TOKENS,
    around=0.0,
    parameters=32 * 4 * LAYER,
    residuals=32 * 34 * TOKENS * WIDTH,
    carry=2 * TOKENS * WIDTH,
    dtype="bfloat16",
)
MESH = ps.MeshShape(("nodes", "model"), (4, 8))
MACHINE = ps.MACHINES["h100"].across_hosts("nodes")


def best(limit: float = 80e9, **changes: float) -> list[ps.Pipeline]:
    stack = dataclasses.replace(STACK, **changes)  # type: ignore[arg-type]
    found = candidates(stack, ps.Pipeline(), MESH, MACHINE, limit)
    return [c.tactic for c in found if c.nbytes <= limit]


def test_numbers_divide() -> None:
    found = candidates(STACK, ps.Pipeline(), MESH, MACHINE, 80e9)
    assert {c.tactic.axis for c in found} == {"nodes", "model"}
    for c in found:
        stages = {"nodes": 4, "model": 8}[c.tactic.axis or ""]
        assert c.tactic.microbatches
        assert c.tactic.chunks
        assert 64 % c.tactic.microbatches == 0
        assert 32 % (stages * c.tactic.chunks) == 0
        assert c.tactic.chunks == 1 or c.tactic.microbatches % stages == 0
    (given,) = candidates(STACK, ps.Pipeline("nodes", 16, 2), MESH, MACHINE, 80e9)
    assert (given.tactic.microbatches, given.tactic.chunks) == (16, 2)
    assert not candidates(STACK, ps.Pipeline("nodes", 24), MESH, MACHINE, 80e9)


def test_backward_passes_are_split_where_that_pays() -> None:
    """With few chunks and fast memory: p - 1 ticks have no gradients of weights."""
    products = {"weights": STACK.backward / 2, "waiting": STACK.residuals / 3}
    fast = dataclasses.replace(
        MACHINE, hop_seconds=0.0, hbm_bytes_per_s=1e30, link_bytes_per_s=1e30
    ).with_axis("nodes", 1e30, 0.0)
    stack = dataclasses.replace(STACK, **products)  # type: ignore[arg-type]

    def found(machine: ps.Machine, chunks: int) -> dict[bool | None, float]:
        tactic = ps.Pipeline("nodes", chunks=chunks)
        rows = candidates(stack, tactic, MESH, machine, 1e15)
        return {c.tactic.split_backward: c.seconds for c in rows if c.tactic.microbatches == 16}

    few, many = found(fast, 1), found(MACHINE, 8)
    third = products["weights"] / fast.matmul_flops_per_s("bfloat16") / 32 / 16  # W of a stage
    assert few[False] - few[True] == pytest.approx(3 * third, rel=1e-6)
    assert many[False] < many[True]
    assert {t.split_backward for t in best()} == {False}  # nothing may be deferred
    given = ps.Pipeline("nodes", 16, split_backward=True)
    assert {c.tactic.split_backward for c in candidates(stack, given, MESH, MACHINE, 80e9)} == {
        True
    }


def test_whole_backward_passes_are_planned_beside_a_split(monkeypatch: pytest.MonkeyPatch) -> None:
    """The best two without a split, as ever, and the best of all with one."""
    stack = dataclasses.replace(STACK, weights=STACK.backward / 2)
    monkeypatch.setattr(pipeline_choice, "stack_of", lambda module: stack)
    module = module_of(lambda x: x + 1, jnp.ones(3))

    def planned(machine: ps.Machine, **given: Any) -> list[bool | None]:
        tactic = ps.Pipeline("nodes", **given)
        found = planned_candidates(module, tactic, MESH, machine, 1e15)
        return [c.tactic.split_backward for c in found]

    assert planned(MACHINE) == [False, False, True]
    assert planned(MACHINE, split_backward=False) == [False, False]
    assert planned(MACHINE, split_backward=True) == [True, True]
    assert planned(MACHINE, microbatches=16) == [False, False]


def test_closed_form_is_that_of_the_theory() -> None:
    machine = dataclasses.replace(
        MACHINE, hop_seconds=0.0, hbm_bytes_per_s=1e30, link_bytes_per_s=1e30
    ).with_axis("nodes", 1e30, 0.0)
    (found,) = candidates(STACK, ps.Pipeline("nodes", 16, 1), MESH, machine, 80e9)
    rate = machine.matmul_flops_per_s("bfloat16") * 32 * 16
    stage = StageSeconds(STACK.forward / rate, STACK.backward / rate)
    assert found.seconds == pytest.approx(pipeline_seconds(PipelineSchedule(4, 16), stage))


def test_closed_form_has_the_kernels_of_layers() -> None:
    """Products at their rate, and passes over memory of ops without a product."""
    machine = ps.MACHINES["h100"]

    def step(params: Any, x: Any, powers: int) -> Any:
        def layer(h: Any, w: Any) -> Any:
            for _ in range(powers):
                h = jnp.cumsum(h, axis=1)
            return h + h @ w, None

        def loss(params: Any) -> Any:
            return (jax.lax.scan(jax.checkpoint(layer), x, params)[0] ** 2).mean()

        return jax.tree.map(jnp.subtract, params, jax.grad(loss)(params))

    found = []
    for powers in (0, 3):
        args = jnp.ones((4, 1024, 1024), jnp.bfloat16), jnp.ones((512, 1024), jnp.bfloat16)
        module = module_of(lambda p, x, n=powers: step(p, x, n), *args, ties=[(0, 0)])
        found.append((stack_of(module), layer_kernels(module, machine, 8)))
    (plain, few), (_, many) = found
    assert plain is not None
    rate = 8 * machine.matmul_flops_per_s("bfloat16")
    assert few.forward > 0.9 * plain.forward / rate
    moves = 4 * 3 * 2 * 512 * 1024 * 2 / 8 / machine.attained_hbm_bytes_per_s
    assert many.forward - few.forward > 0.9 * moves
    assert many.backward - few.backward > 1.5 * moves  # some are fused with their readers
    stack = dataclasses.replace(STACK, kernels=LayerKernels(30.0, 60.0))
    (closed,) = candidates(stack, ps.Pipeline("nodes", 16, 1), MESH, MACHINE, 80e9)
    assert closed.seconds > pipeline_seconds(
        PipelineSchedule(4, 16), StageSeconds(30 / 16, 60 / 16)
    )


def test_what_favours_what() -> None:
    """Slow axes hold the stages; costly heads forbid chunks; little memory takes small parts."""
    first = best()[0]
    assert first.axis == "nodes"
    assert first.chunks
    assert first.chunks > 1
    assert best(around=4 * STACK.forward)[0].chunks == 1
    limit = min(c.nbytes for c in candidates(STACK, ps.Pipeline(), MESH, MACHINE, 80e9))
    assert {t.microbatches for t in best(1.01 * limit)} == {64}


def test_examples_left_for_devices_of_a_node() -> None:
    """A node shares one example by collectives of each layer; eight examples need none."""
    link = 1e11
    free = dataclasses.replace(
        MACHINE, hop_seconds=0.0, hbm_bytes_per_s=1e30, link_bytes_per_s=1e30
    ).with_axis("nodes", 1e30, 0.0)

    def by_count(machine: ps.Machine) -> dict[int | None, float]:
        found = candidates(STACK, ps.Pipeline("nodes", chunks=1), MESH, machine, 80e9)
        return {c.tactic.microbatches: c.seconds for c in found}

    fast, slow = by_count(free), by_count(dataclasses.replace(free, link_bytes_per_s=link))
    # Of 8 microbatches of 8 examples, gradients alone are summed inside of a node, once.
    once = 2 * 7 / 8 * STACK.parameters / 4 / link
    assert slow[8] - fast[8] == pytest.approx(once, rel=1e-6)
    # 64 microbatches of one example: 4 collectives of 8 layers in each of F and B, of 67 ticks.
    shared = 2 * (64 + 4 - 1) * 8 * 4 * 7 / 8 * STACK.carry / 64 / link
    assert slow[64] - fast[64] == pytest.approx(shared, rel=1e-6)


def test_stack_of_a_step() -> None:
    def step(params: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        def loss(params: jax.Array) -> jax.Array:
            return (jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, params)[0] ** 2).mean()

        value, grads = jax.value_and_grad(loss)(params)
        return params - grads, value

    module = roll(module_of(step, jnp.ones((6, 4, 4)), jnp.ones((8, 4)), ties=[(0, 0)])).module
    stack = stack_of(module)
    assert stack is not None
    assert (stack.layers, stack.batch, stack.dtype) == (6, 8, "float32")
    products = 6 * 2 * 8 * 4 * 4
    assert products <= stack.forward < 2 * products
    assert 2 * products <= stack.backward < 3 * products
    assert stack.parameters == 6 * 4 * 4 * 4
    assert stack.carry == 8 * 4 * 4
    assert products <= stack.weights < 1.2 * products
    assert stack.waiting == 6 * 8 * 4 * 4
    assert stack_of(module_of(lambda x: x + 1, jnp.ones(3))) is None


def test_candidates_share_programs() -> None:
    """Pipelines along axes of one size are one program; unlike chunks share the microbatches."""
    call = split_call(STEPS["tied"], arguments(), {}, (), ())
    traced = read_call(jax.jit(STEPS["tied"]), call, arguments(), {}, "step")
    layered = Layered()

    def looped(axis: str, chunks: int) -> Traced:
        form = PipelineForm(axis, 2, chunks)
        return with_loops(traced, Rewrites(microbatches=4, pipeline=(form,)), layered)

    found = [looped("a", 1), looped("b", 1), looped("a", 2)]
    assert [x.rewrites.pipeline[0].axis for x in found] == ["a", "b", "a"]
    assert found[0].module is found[1].module
    assert found[0].module is not found[2].module
    assert found[0].passes[-2] is found[2].passes[-2]


def test_ops_run_again_where_that_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first fitting plan may be slow: a plan that repeats ops of a layer fits as well.

    Values of a program this small would all live on the chip of a v5e.
    """
    shapes = [(256, 256)] + [(256, 1024), (1024, 256)] * 4
    weights = [jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes]
    x = jax.ShapeDtypeStruct((4096, 256), jnp.float32)

    def planned() -> ps.Plan:
        return ps.auto_partition(
            AbstractMesh((4, 2), ("stage", "data")),
            machine=ps.MACHINES["tpu_v5e"].with_traits(vmem_value_fraction=0.0),
            schedule=[ps.Pipeline("stage", microbatches=8), ps.AutomaticPartition()],
            goals=[ps.Fit(23e6), ps.Fastest()],
            episodes=20,
        )(jax.jit(residual_mlps)).plan(weights, x)

    best = planned()
    monkeypatch.setattr(contest, "FAST", 0.0)
    first = planned()
    assert first.fits
    assert best.fits
    assert first.pipeline is not None
    assert best.pipeline is not None
    assert (first.pipeline.again, best.pipeline.again > 0) == (0, True)
    assert best.cost.seconds < first.cost.seconds
