"""Values in memory on the chip: which kernels count as their life."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from partir_search.rules.control_flow import ACCUMULATES
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


def test_values_over_a_loop_over_microbatches_share_what_is_left() -> None:
    """A carry and an operand of the loop stay on the chip as far as the fraction allows."""

    def fn(x: Any, w: Any) -> Any:
        def body(total: Any, _: Any) -> tuple[Any, None]:
            rows = product[:512]
            for _ in range(8):
                rows = jnp.cumsum(rows, axis=0)
            return total + jnp.tile(rows, (2, 1)), None

        product = x @ w
        total, _ = jax.lax.scan(body, jnp.zeros((1024, 4096)), None, length=2)
        return total.sum()

    module = module_of(fn, *ARGUMENTS)
    (loop,) = (op for op in module.body.ops if op.regions)
    loop.params = {**loop.params, ACCUMULATES: True}

    def peak_with(fraction: float) -> float:
        machine = MACHINES["tpu_v5e"].with_traits(vmem_held_fraction=fraction)
        cost = cost_of(state_of(module), machine)
        return cost.peak_bytes - cost.argument_bytes

    assert peak_with(0.0) >= 2 * LARGE
    assert peak_with(1.0) < 2 * LARGE


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
