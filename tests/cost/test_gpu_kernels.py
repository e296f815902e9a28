"""Rates of convolutions and transforms on GPUs, and the stacks of scans."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AbstractMesh

import partir_search as ps
from models.catalog import MODELS
from partir_search.ir.core import Module
from partir_search.simulator.target.machine import MACHINES, Machine
from tests.support import ROUND, cost_of, module_of, ones, state_of

NUMBERS = ("NHC", "HIO", "NHC")
FAST = dataclasses.replace(ROUND, flops_per_s={"default": 1e15})  # memory alone takes time


def seconds(module: Module, machine: Machine = ROUND, **traits: Any) -> float:
    """Simulated seconds of a program with some traits."""
    return cost_of(state_of(module), machine.with_traits(**traits)).seconds


@pytest.mark.parametrize(
    ("padding", "spread", "holes", "ratio"),
    [((8, 0), 8, 1, 9 / 2), ((4, 4), 8, 1, 1.0), ((1, 0), 1, 1, 1.0), ((1, 1), 1, 2, 2.0)],
)
def test_holes_of_windows_and_images(
    padding: tuple[int, int], spread: int, holes: int, ratio: float
) -> None:
    """Two elements of a window 8 apart are a window of 9 if the ends of the image are padded
    differently; an image with holes is twice as long in the forward pass.
    """

    def f(image: Any, window: Any) -> Any:
        return lax.conv_general_dilated(
            *(image, window, (1,), (padding,), (holes,), (spread,)), dimension_numbers=NUMBERS
        )

    module = module_of(f, ones(8, 128, 64), ones(2, 64, 64))
    filled = seconds(module, fills_dilated_windows=True)
    assert filled / seconds(module) == pytest.approx(ratio, rel=0.01)


@pytest.mark.parametrize("spread", [1, 2])
def test_gradients_of_dilated_windows(spread: int) -> None:
    """The window's gradient has 2 x 16 x 8 results of long sums."""

    def f(image: Any, window: Any) -> Any:
        def loss(window: Any) -> Any:
            padding = ((spread, 0),)
            return lax.conv_general_dilated(
                *(image, window, (1,), padding, (1,), (spread,)), dimension_numbers=NUMBERS
            ).sum()

        return jax.grad(loss)(window)

    module = module_of(f, ones(64, 128, 16), ones(2, 16, 8))
    usual, unsplit = seconds(module), seconds(module, full_rate_results=1024)
    operations = 2 * 64 * (2 * 128 - spread) * 16 * 8
    slower = (spread > 1) * 3 * operations / ROUND.matmul_flops_per_s("float32")
    assert unsplit - usual == pytest.approx(slower, rel=0.02)


def test_convolutions_with_groups() -> None:
    """Each of 8 x 128 x 64 results, and each product of the window's 3 elements."""

    def f(image: Any, window: Any) -> Any:
        return lax.conv_general_dilated(
            *(image, window, (1,), ((0, 0),)), dimension_numbers=NUMBERS, feature_group_count=64
        )

    module = module_of(f, ones(8, 130, 64), ones(3, 1, 64))
    traits = {"grouped_convolution_bytes": 100.0, "grouped_product_bytes": 10.0}
    nbytes = 100.0 * 8 * 130 * 64 + 10.0 * 3 * 8 * 128 * 64
    added = seconds(module, **traits) - seconds(module)
    assert added == pytest.approx(nbytes / ROUND.attained_hbm_bytes_per_s, rel=0.2)


@pytest.mark.parametrize(
    ("transform", "arrays", "passes"),
    [
        (lambda x: jnp.fft.fft(x), 2, 0),
        (lambda x: jnp.fft.fft2(x), 2, 1),
        (lambda x: jnp.fft.irfft(x, 126), 1 + 126 / 128, 2),
    ],
)
def test_passes_of_transforms(transform: Any, arrays: float, passes: int) -> None:
    """A pass moves operand and result, both of 64 x 64 complex numbers or about as many real."""
    module = module_of(transform, ones(64, 64).astype(jnp.complex64))
    added = seconds(module, FAST, transforms_in_passes=True) - seconds(module, FAST)
    moved = passes * arrays * 64 * 64 * 8
    assert added == pytest.approx(moved / ROUND.attained_hbm_bytes_per_s, rel=0.02)


def test_rows_of_stacks() -> None:
    """Of four stacks a product's row is copied, a row that the iteration reads is copied, a row of
    an elementwise kernel is written in place, and a product reads a copy of a row; three stacks are
    filled with zeros first. A copy is a kernel.
    """

    def f(x: Any, a: Any, rows: Any) -> Any:
        def body(x: Any, row: Any) -> Any:
            product = x @ a
            read = jnp.cumsum(product, axis=0)
            return jnp.sin(read @ row), (product, read, jnp.cos(product))

        return lax.scan(body, x, rows)

    module = module_of(f, ones(64, 64), ones(64, 64), ones(5, 64, 64))
    bytes_moved = 5 * (3 + 3 + 1 + 2) * 64 * 64 * 4
    copied = seconds(module, FAST, copies_scan_rows=True) - seconds(module, FAST)
    assert copied == pytest.approx(bytes_moved / ROUND.attained_hbm_bytes_per_s, rel=0.01)


def test_fewer_residuals_where_stacks_are_copied() -> None:
    """Without a limit, a plan in as few seconds as within half of the memory."""
    sizes = {"layers": 4, "d_model": 256, "heads": 4, "d_ff": 1024, "seq": 256}
    entry = MODELS["transformer-tiny"].resized(scan=True, **sizes)

    def cost(**options: Any) -> ps.Cost:
        usual = {"machine": "h200", "progress": False, "on_overflow": "warn"}
        step = ps.auto_partition(AbstractMesh((1,), ("data",)), **usual, **options)(entry.step)
        return step.plan(*entry.abstract_args(16)).cost

    stored, auto = cost(remat=False), cost()
    limited = cost(goals=[ps.Fit(0.45 * stored.peak_bytes), ps.Fastest()])
    assert auto.seconds < 1.01 * limited.seconds < stored.seconds


def test_traits_of_gpus() -> None:
    gpu, tpu = MACHINES["h200"].traits, MACHINES["tpu_v5e"].traits
    for name in (
        *("fills_dilated_windows", "full_rate_results", "grouped_convolution_bytes"),
        *("grouped_product_bytes", "transforms_in_passes", "copies_scan_rows"),
        "stores_values_sliced_again",
    ):
        assert getattr(gpu, name)
        assert not getattr(tpu, name)


def test_levels_of_recursions() -> None:
    """Of two levels, each sliced twice, the second is stored."""

    def f(x: Any) -> Any:
        first = jnp.sin(x)
        second = first[:-1] * first[1:]
        return jnp.sin(second[:-1] + second[1:])

    state = state_of(module_of(f, ones(256, 512)))
    stored = cost_of(state, ROUND.with_traits(stores_values_sliced_again=True))
    size, moved = 255 * 512 * 4, 2 * 255 * 512 * 4
    usual = cost_of(state)
    assert stored.peak_bytes - usual.peak_bytes == pytest.approx(size, rel=0.01)
    assert stored.seconds - usual.seconds == pytest.approx(
        moved / ROUND.attained_hbm_bytes_per_s, rel=0.01
    )
