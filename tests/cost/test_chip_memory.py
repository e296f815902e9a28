"""Values in memory on the chip: which kernels count as their life."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from partir_search.ir.core import Module
from partir_search.rules.control_flow import ACCUMULATES
from partir_search.rules.registry import RuleTable
from partir_search.simulator.memory.softmax import DotOutputs
from partir_search.simulator.simulator import CostModel
from partir_search.simulator.target.machine import MACHINES
from tests.support import cost_of, module_of, state_of

LARGE = 1024 * 4096 * 4  # bytes of a value that fits
ARGUMENTS = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((1024, 512), (512, 4096))]


def peak(fn: Any, least: int) -> float:
    machine = MACHINES["tpu_v5e"].with_traits(vmem_kernel_bytes=least)
    cost = cost_of(state_of(module_of(fn, *ARGUMENTS)), machine)
    return cost.peak_bytes - cost.argument_bytes


def over(count: int, size: int) -> Any:
    """A product that is read again after a number of kernels of some rows."""

    def fn(x: Any, w: Any) -> Any:
        product = x @ w
        rows = product[:size]
        for _ in range(count):
            rows = jnp.cumsum(rows, axis=0)
        return rows.sum(), (product * product).sum()

    return fn


def test_small_kernels_do_not_end_a_life() -> None:
    assert peak(over(8, 8), 1) > LARGE
    assert peak(over(8, 8), 1 << 22) < LARGE


def test_large_kernels_do() -> None:
    assert peak(over(8, 512), 1 << 22) > LARGE


@pytest.mark.parametrize("parts", [False, True])
def test_kernels_of_a_loop_over_microbatches_count_too(parts: bool) -> None:
    """Any other loop is one kernel."""

    def fn(x: Any, w: Any) -> Any:
        def body(rows: Any, _: Any) -> tuple[Any, None]:
            for _ in range(8):
                rows = jnp.cumsum(rows, axis=0)
            return rows, None

        product = x @ w
        rows, _ = jax.lax.scan(body, product[:512], None, length=2)
        return rows.sum(), (product * product).sum()

    module = module_of(fn, *ARGUMENTS)
    (loop,) = (op for op in module.body.ops if op.regions)
    loop.params = {**loop.params, ACCUMULATES: parts}
    cost = cost_of(state_of(module), MACHINES["tpu_v5e"])
    assert (cost.peak_bytes - cost.argument_bytes > LARGE) == parts


def accumulating(layers: int) -> Module:
    """Loop over microbatches with a loop over layers inside, of small rows and a larger carry."""

    def layer(rows: Any, _: Any) -> tuple[Any, None]:
        for _ in range(8):
            rows = jnp.cumsum(rows, axis=0)
        return rows, None

    def fn(x: Any, w: Any) -> Any:
        def body(total: Any, _: Any) -> tuple[Any, None]:
            rows, _ = jax.lax.scan(layer, product[:512], None, length=layers)
            return total + jnp.tile(rows, (2, 1)), None

        product = x @ w
        total, _ = jax.lax.scan(body, jnp.zeros((1024, 4096)), None, length=2)
        return total.sum()

    module = module_of(fn, *ARGUMENTS)
    (loop,) = (op for op in module.body.ops if op.regions)
    loop.params = {**loop.params, ACCUMULATES: True}
    return module


@pytest.mark.parametrize("layers", [1, 2])
def test_values_over_a_loop_over_microbatches_share_the_chip(layers: int) -> None:
    """A carry and an operand of the loop stay there as far as the fraction allows, of the memory on
    the chip without a loop over layers inside, of what short-lived values leave with one.
    """
    module = accumulating(layers)

    def peak_with(**fractions: float) -> float:
        given = {"vmem_held_fraction": 0.0, "vmem_carried_fraction": 0.0} | fractions
        cost = cost_of(state_of(module), MACHINES["tpu_v5e"].with_traits(**given))
        return cost.peak_bytes - cost.argument_bytes

    names = ["vmem_carried_fraction", "vmem_held_fraction"]
    own, other = names if layers == 1 else reversed(names)
    assert peak_with(**{other: 1.0}) >= 2 * LARGE
    assert peak_with(**{own: 1.0}) < 2 * LARGE


@pytest.mark.parametrize("inner_fraction", [0.01, 0.1])
def test_loops_of_small_values_leave_room_for_carries(inner_fraction: float) -> None:
    """Rows of 8.4 MB in a loop over layers, beside a carry of 16.8 MB: 0.0625 of the memory."""
    module = accumulating(2)

    def held_with(value_fraction: float) -> bool:
        machine = MACHINES["tpu_v5e"].with_traits(
            vmem_held_fraction=0.0,
            vmem_carried_fraction=1.0,
            vmem_inner_fraction=inner_fraction,
            vmem_value_fraction=value_fraction,
        )
        cost = cost_of(state_of(module), machine)
        return cost.peak_bytes - cost.argument_bytes < 2 * LARGE

    assert held_with(0.25) == (inner_fraction > 1 / 16)
    assert not held_with(0.1)  # the carry is too large for the chip


@pytest.mark.parametrize("rows", [2, 8])
def test_rows_of_large_stacks_are_not_on_the_chip(rows: int) -> None:
    """Of 16.8 MB each: a stack of eight exceeds half of the memory on the chip."""
    machine = MACHINES["tpu_v5e"]

    def fn(stack: Any) -> Any:
        def body(total: Any, row: Any) -> tuple[Any, None]:
            return total + jnp.cumsum(row, axis=0)[-1, 0], None

        return jax.lax.scan(body, 0.0, stack)[0]

    state = state_of(module_of(fn, jax.ShapeDtypeStruct((rows, 1024, 4096), jnp.float32)))
    (loop,) = (op for op in state.graph.module.body.ops if op.regions)
    model = CostModel(state.graph.module, state.graph.rules, machine)
    kernels, read = model.time.kernels, loop.regions[0].args[1].id
    found = model.load(state.partition()).roofline
    (k,) = (k for k in range(len(kernels.op)) if read in kernels.values(k))
    near, far = machine.vmem_bytes_per_s, machine.attained_hbm_bytes_per_s
    written = LARGE / near
    wanted = written + LARGE / (near if rows == 2 else far)
    assert found.components.own[k] == pytest.approx(rows * wanted)


def test_products_added_to_totals_run_after_the_layers() -> None:
    """Their operands wait until then, and the products are never stored."""

    def fn(x: Any, w: Any) -> Any:
        def layer(h: Any, _: Any) -> tuple[Any, None]:
            return jnp.tanh(h @ h.T) @ h, None

        def body(total: Any, _: Any) -> tuple[Any, None]:
            left = jnp.cumsum(x @ w, axis=1)
            total = total + left.T @ left
            h, _ = jax.lax.scan(layer, left[:, :512], None, length=2)
            return total + h.sum(), None

        return jax.lax.scan(body, jnp.zeros((4096, 4096)), None, length=2)[0]

    module = module_of(fn, *ARGUMENTS)
    (loop,) = (op for op in module.body.ops if op.regions)
    loop.params = {**loop.params, ACCUMULATES: True}
    peaks = []
    for defers in (False, True):
        machine = MACHINES["tpu_v5e"].with_traits(
            defers_accumulated_products=defers, vmem_value_fraction=0.0
        )
        peaks.append(cost_of(state_of(module), machine).peak_bytes)
    product = 4096 * 4096 * 4
    assert peaks[0] - peaks[1] == pytest.approx(product, rel=0.5)


def test_scattered_scores_are_not_gathered() -> None:
    """Of products whose elements a gather reads, f32 values are stored too; not of updates."""

    def fn(x: Any, w: Any, at: Any, reads: bool) -> Any:
        product = (x @ w).astype(jnp.float32)
        if reads:
            return jnp.take_along_axis(product, at, axis=1).sum()
        return jnp.zeros((2, *product.shape)).at[at[0, 0]].add(product)

    narrow = [jax.ShapeDtypeStruct(a.shape, jnp.bfloat16) for a in ARGUMENTS]
    for reads in (True, False):
        args = (*narrow, jax.ShapeDtypeStruct((1024, 1), jnp.int32))
        module = module_of(lambda *a, r=reads: fn(*a, r), *args)
        (dot,) = (op for op in module.ops if op.prim == "dot_general")
        rules = [RuleTable()(op) for op in module.ops]
        assert DotOutputs(module, rules).feeds_gather(dot) == reads
