"""What is live beside the values that a program stores, by hand."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from partir_search.ir.mesh import MeshShape
from partir_search.lowering.localize import localize
from partir_search.simulator.simulator import CostModel
from partir_search.simulator.target.machine import Machine
from tests.support import ROUND, module_of, ones, state_of, tile_arg

N = 4
SIZE = 64
BYTES = 4 * SIZE * SIZE


def held(state: Any, machine: Machine = ROUND) -> list[float]:
    """Bytes that are live beside stored values, by position of the module's ops."""
    model = CostModel(state.graph.module, state.graph.rules, machine)
    partition = state.partition()
    found = model.simulate(localize(partition))
    stored = model.memory.live_bytes(found.load.roofline.nbytes, found.temporaries.stored_casts)
    beside = found.live - found.load.argument_bytes - stored
    return np.round(beside, 3).tolist()


def at(state: Any, prim: str) -> list[int]:
    """Positions of the ops of a primitive."""
    return [i for i, op in enumerate(state.graph.module.body.ops) if op.prim == prim]


@pytest.mark.parametrize("reduces", [True, False])
def test_what_is_reduced_is_not_written_over(reduces: bool) -> None:
    """A product's partial sums are summed up; what follows makes a masked copy, and sums of it."""

    def fn(x: Any, w: Any, mask: Any) -> Any:
        masked = (x @ w) * mask
        return masked, jnp.sum(masked, 0) if reduces else jnp.tanh(masked)

    state = state_of(module_of(fn, *(ones(SIZE, SIZE) for _ in range(3))), MeshShape(("a",), (N,)))
    tile_arg(state, 0, 1, "a")
    assert max(held(state)) == (BYTES if reduces else 0.0)


def gradients() -> Any:
    """Rows are tiled, and gathered for a product whose columns are tiled: in both passes."""

    def loss(x: Any, w: Any, wide: Any) -> Any:
        return jnp.sum((jnp.sin(x @ w) @ wide) ** 2)

    args = [ones(SIZE, SIZE) for _ in range(3)]
    state = state_of(module_of(jax.grad(loss, argnums=(1, 2)), *args), MeshShape(("a",), (N,)))
    tile_arg(state, 2, 1, "a")
    tile_arg(state, 0, 0, "a")
    return state


def test_shards_are_kept_for_the_second_gather() -> None:
    """The sine is stored nowhere else: where no gather needs it, it is made again."""
    state = gradients()
    _, first, second, _, last = at(state, "dot_general")
    found = held(state)
    assert found[first] == found[second] == BYTES + BYTES / N
    assert set(found[first + 1 : second]) == {BYTES / N}
    assert found[last] == 0.0


@pytest.mark.parametrize(("link", "late"), [(1e6, True), (1e15, False)])
def test_products_wait_for_gathers_with_what_they_read(link: float, late: bool) -> None:
    """The gather for the gradient begins when the product's other operand is there. Nothing waits
    for the gradient: behind slow links the copy is there until the step ends.
    """
    state = gradients()
    _, _, gradient, _, last = at(state, "dot_general")
    machine = dataclasses.replace(ROUND, link_bytes_per_s=link).with_traits(
        async_all_gather="since_source"
    )
    found, sooner = held(state, machine), held(state)
    assert found[gradient - 1] == sooner[gradient - 1] + BYTES
    assert found[last] == (BYTES if late else 0.0)
    assert found[: gradient - 1] == sooner[: gradient - 1]


@pytest.mark.parametrize("small", [True, False])
def test_operands_gathered_again_lie_on_the_chip(small: bool) -> None:
    """Up to half of the memory on the chip, before the dot that reads the copy."""
    state = gradients()
    _, _, gradient, _, _ = at(state, "dot_general")
    machine = dataclasses.replace(ROUND, vmem_bytes=2 * BYTES - (not small))
    found = held(state, machine.with_traits(async_all_gather="since_source"))
    assert found[gradient - 1] == held(state, machine)[gradient - 1] + (0 if small else BYTES)


@pytest.mark.parametrize("small", [True, False])
def test_the_first_step_of_a_reduce_scatter_ends_on_the_chip(small: bool) -> None:
    """A gradient scattered on two axes: half of the partial sums beside all of them."""

    def fn(x: Any, w: Any) -> Any:
        return w - jax.grad(lambda w: jnp.sum(jnp.sin(x @ w)))(w)

    mesh = MeshShape(("a", "b"), (2, 2))
    state = state_of(module_of(fn, *(ones(SIZE, SIZE) for _ in range(2))), mesh)
    for dim, axis in enumerate(mesh.names):
        tile_arg(state, 0, 0, axis)
        tile_arg(state, 1, dim, axis)
    machine = dataclasses.replace(ROUND, vmem_bytes=BYTES - (not small))
    *_, gradient = at(state, "dot_general")
    found = held(state, machine.with_traits(async_all_gather="since_source"))
    assert found[gradient] == BYTES + (0 if small else BYTES / 2)


def gated(columns: int) -> Any:
    """Columns of a product, gathered to be sliced: two slices of as many columns as asked for."""

    def loss(x: Any, w: Any, v: Any) -> Any:
        y = x @ w
        return jnp.sum((jnp.tanh(y[:, :columns]) * jnp.tanh(y[:, -columns:]) @ v) ** 2)

    args = ones(SIZE, SIZE), ones(SIZE, SIZE), ones(columns, SIZE)
    state = state_of(module_of(jax.grad(loss, argnums=(1, 2)), *args), MeshShape(("a",), (N,)))
    tile_arg(state, 1, 1, "a")
    return state


@pytest.mark.parametrize("columns", [SIZE // 2, SIZE // 4])
def test_copies_live_until_functions_of_them_are_computed_again(columns: int) -> None:
    """The gathered product, or smaller slices, until the backward pass. The product's shard dies
    with the gather, its only reader.
    """
    state = gated(columns)
    product, second, gradient, *_ = at(state, "dot_general")
    found = held(state)
    assert max(found) == found[product + 1] == BYTES
    assert found[second] == 2 * columns / SIZE * BYTES - BYTES / N
    assert min(found[second : gradient + 1]) >= found[second]
    assert found[-1] < found[second]


def test_exponentials_in_place_of_scores_end_the_recomputation() -> None:
    """A gathered bias of scores is read before the exponentials are stored, not again."""

    def loss(q: Any, k: Any, bias: Any) -> Any:
        scores = (q @ k).astype(jnp.float32) + bias.T
        return jnp.sum((jax.nn.softmax(scores).astype(q.dtype) @ k.T).astype(jnp.float32) ** 2)

    args = (ones(SIZE, SIZE).astype(jnp.bfloat16),) * 2
    module = module_of(jax.grad(loss), *args, ones(SIZE, SIZE))
    state = state_of(module, MeshShape(("a",), (N,)))
    model = CostModel(
        state.graph.module, state.graph.rules, ROUND.with_traits(keeps_dots_wide=True)
    )
    (bias,) = (op.results[0].id for op in module.ops if op.prim == "add")
    assert model.memory.read_until[bias] == -1
    plain = CostModel(state.graph.module, state.graph.rules, ROUND)
    assert plain.memory.read_until[bias] >= 0
