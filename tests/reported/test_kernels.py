"""Pallas kernels, whose grids are tiled where programs have no order."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas.ops.tpu.flash_attention import flash_attention
from jax.sharding import AbstractMesh

import partir_search as ps
from partir_search.ir.kind import Kind
from partir_search.rules.registry import RuleTable
from partir_search.simulator.memory.stored_operands import stored_operands
from partir_search.simulator.target.machine import find_machine
from tests.propagation.kernel_cases import attention, product
from tests.support import module_of

MESH = AbstractMesh((2, 4), ("data", "model"))


def _scaled(x: Any, body: Callable[..., None], **options: Any) -> Any:
    """A kernel over eight blocks of rows."""
    spec = pl.BlockSpec((1, x.shape[1]), lambda i: (i, 0))
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    call = pl.pallas_call(
        body, grid=(8,), in_specs=[spec], out_specs=spec, out_shape=shape, interpret=True, **options
    )
    return call(x)


def _twice(x_ref: Any, out_ref: Any) -> None:
    out_ref[...] = x_ref[...] * 2


def _numbered(x_ref: Any, out_ref: Any) -> None:
    out_ref[...] = x_ref[...] + pl.program_id(0)


def _rule(fn: Callable[..., Any], *args: Any) -> Any:
    (op,) = (op for op in module_of(fn, *args).ops if op.prim == "pallas_call")
    return RuleTable()(op)


ORDERED: dict[str, tuple[Callable[..., None], dict[str, Any]]] = {
    "declared": (
        _twice,
        {"compiler_params": pltpu.CompilerParams(dimension_semantics=("arbitrary",))},
    ),
    "numbered": (_numbered, {}),
    "side_effects": (_twice, {"compiler_params": pltpu.CompilerParams(has_side_effects=True)}),
}


def test_independent_programs_are_tiled() -> None:
    x = jnp.ones((8, 4))
    parallel = pltpu.CompilerParams(dimension_semantics=("parallel",))
    for options in ({}, {"compiler_params": parallel}):
        rule = _rule(lambda x, o=options: _scaled(x, _twice, **o), x)
        assert (rule.kind, rule.sizes, rule.operands) == (Kind.KERNEL, (8,), ((0, -1),))
        assert rule.flops_per_point == 4.0  # one product of each element


@pytest.mark.parametrize("case", ORDERED)
def test_programs_in_order_stay_whole(case: str) -> None:
    """Of a dim declared in order, of programs that ask for their place, of side effects."""
    body, options = ORDERED[case]
    assert _rule(lambda x: _scaled(x, body, **options), jnp.ones((8, 4))).opaque


def test_sums_over_the_grid_stay_whole() -> None:
    """Grid dims that write one block again, and index maps other than one grid dim."""
    x, w = jnp.ones((8, 8)), jnp.ones((8, 16))
    assert _rule(product, x, w).sizes == (2, 4)
    q, kv = jnp.ones((4, 4, 3, 2)), jnp.ones((4, 2, 3, 2))
    assert _rule(attention, q, kv, kv).sizes == (4, 2)  # pairs of heads
    assert _rule(lambda q: attention(q, q[:, :3], q[:, :3]), q).sizes == (
        4,
    )  # one head is not read


def test_the_estimate_of_a_tile_is_its_share() -> None:
    """`cost_estimate` gives the operations, and each device's kernel has its share of it."""
    estimate = pl.CostEstimate(flops=800, transcendentals=80, bytes_accessed=8000)
    x = jnp.ones((8, 4))
    module = module_of(lambda x: _scaled(x, _twice, cost_estimate=estimate), x)
    (op,) = (op for op in module.ops if op.prim == "pallas_call")
    rule = RuleTable()(op)
    assert rule.flops_per_point == 100.0
    local = rule.localize(op.params, [(2, 4)], [(2, 4)])
    assert local["grid_mapping"].grid == (2,)
    assert [m.array_aval.shape for m in local["grid_mapping"].block_mappings] == [(2, 4)] * 2
    assert dataclasses.astuple(local["cost_estimate"])[:3] == (200, 20, 2000)


def test_operands_are_arrays() -> None:
    """A kernel reads computed operands from memory; transposes of them are their layout."""

    def fn(x: Any) -> Any:
        return _scaled(jnp.tanh(x).T, _twice)

    module = module_of(fn, jnp.ones((4, 8)))
    rules = list(map(RuleTable(), module.ops))
    stored = stored_operands(module, rules, find_machine("tpu_v5e").traits)
    (tanh,) = (op.results[0].id for op in module.ops if op.prim == "tanh")
    assert stored == {tanh}


def test_flash_attention() -> None:
    """Batch and heads of jax's TPU kernels, forward and backward, need no collectives."""

    def loss(q: Any, k: Any, v: Any) -> Any:
        return (flash_attention(q, k, v, causal=True).astype(jnp.float32) ** 2).sum()

    args = [jax.ShapeDtypeStruct((8, 8, 512, 128), jnp.bfloat16)] * 3
    tiled = [ps.ManualPartition({"q": 0}, axis="data"), ps.ManualPartition({"q": 1}, axis="model")]
    step = ps.auto_partition(MESH, machine="tpu_v5e", schedule=tiled, progress=False)
    plan = step(jax.grad(loss, (0, 1, 2))).plan(*args)
    assert not plan.opaque()
    assert not any(plan.collective_counts.values())
    layouts = [plan.partition.layout(v)[:2] for v in plan.module.body.results]
    assert layouts == [((0,), (1,))] * 3


@pytest.mark.devices
def test_kernels_in_a_train_step(mesh: jax.sharding.Mesh) -> None:
    """A step with a kernel of rows in a layer, searched, equals the plain step."""

    @jax.custom_vjp
    def double(x: Any) -> Any:
        return _scaled(x, _twice)

    double.defvjp(lambda x: (double(x), None), lambda _, g: (double(g),))

    def step(w: Any, x: Any) -> Any:
        value, grad = jax.value_and_grad(lambda w: (double(jnp.tanh(x @ w)) ** 2).mean())(w)
        return w - 0.1 * grad, value

    w, x = jnp.cos(jnp.arange(32.0)).reshape(8, 4), jnp.sin(jnp.arange(64.0)).reshape(8, 8)
    planned = ps.auto_partition(mesh, machine="tpu_v5e", episodes=20, progress=False)(step)
    for got, want in zip(planned(w, x), jax.jit(step)(w, x), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
