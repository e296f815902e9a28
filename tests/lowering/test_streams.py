"""Collective matmul: products in turns, instead of a gather or a scatter."""

from __future__ import annotations

import collections
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import partir_search as ps
from experiments.schedules import schedule
from models.catalog import MODELS
from partir_search.ir.axis_options import Modes
from partir_search.ir.core import Module
from partir_search.ir.mesh import MeshShape
from partir_search.lowering.collective_matmul import PARTIAL_RESULT, MatmulRing
from partir_search.lowering.local_ir import RingReshard
from partir_search.lowering.local_value import LocalValue
from partir_search.lowering.localize import localize
from partir_search.propagation.state import State
from tests.support import assert_same, check_partition, floats_of, module_of, state_of, tile_arg


@pytest.mark.parametrize("n", [2, 3, 4, 5, 8])
def test_every_block_passes_every_device(n: int) -> None:
    """A block is worked on once by each device, from both sides, and a sum ends at its owner."""
    local = LocalValue(0, module_of(jnp.sin, jnp.ones(4)).values[0], ((),), (), (4,))
    for moving in (0, PARTIAL_RESULT):
        ring = MatmulRing(0, n, 0, moving)
        offsets = [o for group in ring.groups for o in group]
        assert sorted(o % n for o in offsets) == list(range(n))
        assert len(ring.groups) == n // 2 + 1
        at: dict[int, list[list[int]]] = {}  # per offset and device: who put what there is in
        for offset in offsets:
            at[offset] = [[(i + offset) % n] if moving == 0 else [i] for i in range(n)]
            for before in ring.previous(offset):
                pairs = ring.permute(local, offset, before).pairs
                assert len(set(pairs)) == n
                for source, target in pairs:
                    if moving == 0:  # the same block
                        assert at[before][source] == at[offset][target]
                    else:  # sums of the same block
                        assert (source + before) % n == (target + offset) % n
                        at[offset][target] = at[offset][target] + at[before][source]
        if moving == PARTIAL_RESULT:
            assert all(sorted(held) == list(range(n)) for held in at[0])


def megatron(w1: Any, w2: Any, x: Any) -> Any:
    def loss(w1: Any, w2: Any, x: Any) -> Any:
        y = jnp.cos(jnp.tanh(jnp.sin(x) @ w1) @ w2)
        return jnp.sum(y * y)

    return jax.grad(loss, (0, 1, 2))(w1, w2, x)


def rows_between_blocks(module: Module, n: int) -> State:
    """Megatron with activations tiled by rows between the two products."""
    state = state_of(module, MeshShape(("a",), (n,)))
    tile_arg(state, 0, 1, "a")
    second = [op for op in module.ops if op.prim == "dot_general"][1]
    state.tile(state.graph.class_of[second.results[0].id], 0, (0,))
    tile_arg(state, 2, 0, "a")
    return state


@pytest.mark.devices
@pytest.mark.parametrize("n", [2, 3, 4, 8])
def test_megatron_with_sequence_parallelism(n: int) -> None:
    """Gathers before and scatters after products become n - 1 permutes each of the same bytes;
    what two products of the backward pass share stays gathered.
    """
    rows, width, hidden = 4 * n, 2 * n, 3 * n
    args = floats_of((width, hidden), (hidden, width), (rows, width))
    state = rows_between_blocks(module_of(megatron, *args), n)
    before = collections.Counter(m.step.kind for m, _ in localize(state.partition()).reshards())
    assert before == {"all_gather": 3, "reduce_scatter": 2}
    state.modes = Modes(windowed_einsums={0: False})
    partition = state.partition()
    check_partition(partition, megatron, args)
    moves = [m for m, _ in localize(partition).reshards()]
    assert collections.Counter((m.step.kind, isinstance(m, RingReshard)) for m in moves) == {
        ("all_gather", False): 1,
        ("collective_permute", True): 4 * (n - 1),
    }
    block = 4 * rows * width // n
    assert {m.payload_bytes for m in moves if isinstance(m, RingReshard)} == {block}


@pytest.mark.devices
def test_a_train_step(mesh: jax.sharding.Mesh) -> None:
    """Sharded parameters ring into products along the batch axis: no gather of one that a single
    product uses in a pass is left, and plans keep what streams.
    """
    entry = MODELS["transformer-tiny"]
    args = jax.jit(lambda: entry.args(8))()

    def plan_of(*tactics: ps.Tactic) -> Any:
        batch = ps.ManualPartition({"batch": 0}, axis="batch")
        tactics = (batch, *schedule("mp+z3"), *tactics)
        return ps.auto_partition(mesh, machine="tpu_v5e", schedule=tactics)(entry.step)

    before = plan_of().plan(*args)
    step = plan_of(ps.CollectiveMatmul(("batch",)))
    plan = step.plan(*args)
    assert ps.WindowedEinsum("batch") in plan.actions
    assert plan.collective_counts["all_gather"] < before.collective_counts["all_gather"]
    assert plan.collective_counts["collective_permute"] > 0
    lowered = step.lower(*args)
    assert ps.stablehlo_counts(lowered.as_text()) == plan.collective_counts
    got = jax.block_until_ready(lowered.compile()(*args))
    assert_same(jax.tree.leaves(got), jax.tree.leaves(jax.jit(entry.step)(*args)), 2e-4)
    again = ps.auto_partition(mesh, machine="tpu_v5e", schedule=plan)(entry.step).plan(*args)
    assert again.cost == plan.cost
