"""Pipelines of an encoder and a decoder, executed on 8 devices against the plain step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh

import partir_search as ps
from partir_search.ir.mesh import MeshShape
from partir_search.ir.printer import print_partition
from partir_search.lowering.verify_local import verify_local
from partir_search.passes.pipeline.chain_parts import chain_parts
from partir_search.passes.pipeline.loop_parts import layer_pairs, microbatch_loop
from partir_search.planning.pipeline_choice import candidates, stack_of
from partir_search.planning.trace import read_call, split_call
from partir_search.propagation.graph import Graph
from partir_search.propagation.state import State
from tests.pipelines.programs import BATCH, LAYERS, LENGTH, STEPS, WIDTH, arguments
from tests.pipelines.test_lockstep import in_parts, pipeline
from tests.support import assert_same

TOKENS = ps.ManualPartition({"tokens": 0}, "data")


def planned(mesh: Any, *schedule: Any) -> tuple[Any, Any]:
    step = ps.auto_partition(
        mesh, machine="tpu_v5e", schedule=list(schedule), episodes=20, progress=False
    )(jax.jit(STEPS["translated"]))
    return step, step.plan(*arguments())


def test_decoders_read_the_encoder() -> None:
    """Its result travels beside the decoder's carry; sums over data are taken once."""
    mesh = AbstractMesh((4, 2), ("stage", "data"))
    _, plan = planned(mesh, ps.Pipeline("stage", microbatches=8), TOKENS)
    verify_local(plan.program)
    moves = [c for c in plan.collectives if c.kind == "collective_permute"]
    assert {c.axes for c in moves} == {("stage",)}
    carry = BATCH // 8 // 2 * LENGTH * WIDTH * 4
    ticks = 8 + 4 - 1
    # The carries of both stacks, the encoder's result and its norm's operand, and cotangents.
    assert sum(c.times for c in moves if c.bytes == carry) >= 6 * ticks
    reduced = [c for c in plan.collectives if c.axes == ("data",) and c.kind == "all_reduce"]
    assert {c.times for c in reduced} == {1}
    placed = {path: spec for path, _, spec in plan.arguments()}
    assert plan.pipeline is not None
    assert placed["tokens"][0] == "data"


def test_numbers_left_open() -> None:
    """The closed forms take both stacks as one."""
    step, args = jax.jit(STEPS["translated"]), arguments()
    call = split_call(step, args, {}, (), ())
    stack = stack_of(read_call(step, call, args, {}, "step").module)
    assert stack is not None
    assert stack.counts == (LAYERS // 2, LAYERS // 2)
    mesh, machine = ps.MeshShape(("stage",), (2,)), ps.MACHINES["tpu_v5e"]
    found = candidates(stack, ps.Pipeline(), mesh, machine, 1e9)
    assert {c.tactic.chunks for c in found} == {1, 2}


def test_norms_are_computed_again() -> None:
    """Of the values between the stacks, the operand and a row for each token travel."""
    _, loop = microbatch_loop(in_parts(STEPS["translated"], 8))
    parts = chain_parts(loop, layer_pairs(loop.regions[0]))
    whole, row = (BATCH // 8, LENGTH, WIDTH), (BATCH // 8, LENGTH, 1)
    shapes = [sorted(v.type.shape for v in values) for values in parts.travelling]
    # The cotangent of the decoder's embedding passes through the encoder's backward stages.
    assert shapes == [[], [row, whole, whole], [row, whole, whole], [whole]]


@pytest.mark.parametrize("how", ["1f1b", "gpipe", "split"])
def test_print(golden: Callable[[str], None], how: str) -> None:
    """Loops over ticks of an encoder and a decoder that multiplies by the encoder's result.

    With `gpipe` what leaves the decoder waits for the head. With a split, loops have W.
    """

    def loss(params: Any, tokens: Any, key: Any) -> Any:
        half, rest = (
            jax.tree.map(lambda x, i=i: x[i : i + 2], params["layers"]["w"]) for i in (0, 2)
        )
        h = params["embedding"][tokens]
        encoded, _ = jax.lax.scan(lambda h, w: (h + jnp.sin(h @ w), None), h, half)
        h, _ = jax.lax.scan(lambda h, w: (h + jnp.sin(h @ w) * encoded, None), jnp.cos(h), rest)
        return (h**2).mean()

    jax.clear_caches()  # names of values depend on jaxprs shared with earlier traces
    options: dict[str, Any] = {"split": True} if how == "split" else {"schedule": how}
    module = pipeline(in_parts(jax.value_and_grad(loss), 2), 2, 2, 1, **options)
    state = State(Graph(module), MeshShape(("",), (1,)))
    golden(print_partition(state.partition()))


@pytest.mark.devices
@pytest.mark.long
@pytest.mark.parametrize(
    ("shape", "chunks", "how"),
    [
        ((4, 2, 1), 1, {}),
        ((2, 2, 2), 1, {}),
        ((2, 2, 2), 2, {}),
        ((4, 2, 1), 1, {"schedule": "gpipe"}),
        ((4, 2, 1), 1, {"split_backward": True}),
        ((2, 2, 2), 2, {"split_backward": True}),
    ],
)
def test_executed(shape: tuple[int, int, int], chunks: int, how: dict[str, Any]) -> None:
    """Other axes inside of stages are searched over."""
    mesh = jax.make_mesh(shape, ("stage", "data", "model"))
    pipeline = ps.Pipeline("stage", microbatches=4, chunks=chunks, **how)
    step, plan = planned(mesh, pipeline, ps.AutomaticPartition())
    assert plan.pipeline is not None
    want = jax.tree.leaves(jax.jit(STEPS["translated"])(*arguments()))
    assert_same(jax.tree.leaves(step(*arguments())), want, tolerance=1e-5)
