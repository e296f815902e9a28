"""What XLA:GPU stores, and what its kernels take."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from partir_search.simulator.program_analysis import analyse_program
from partir_search.simulator.target.machine import MACHINES
from tests.support import ROUND, cost_of, module_of, ones, state_of, tile_arg

GPU = ROUND.with_traits(materializes_dot_operands=True, fuses_dot_epilogues=False)
SIZE = 64 * 512 * 4  # bytes of an f32 [64, 512]


def test_products_read_concatenations_from_memory() -> None:
    """The two pieces [64, 256] of a product's operand, one after the other: in a buffer."""

    def f(x: Any, y: Any, a: Any) -> Any:
        return jnp.concatenate([x * 2, y], axis=1) @ a

    state = state_of(module_of(f, ones(64, 256), ones(64, 256), ones(512, 32)))
    assert cost_of(state, GPU).peak_bytes - cost_of(state).peak_bytes == pytest.approx(SIZE, abs=8)


def test_comparisons_in_their_consumers() -> None:
    """The derivative of a ReLU reads the function's operand; its sign is in no buffer."""

    def f(x: Any, a: Any, b: Any) -> Any:
        def loss(a: Any, b: Any) -> Any:
            hidden = jax.vmap(jnp.matmul)(x, a)
            return (jnp.where(hidden >= 0, hidden, 0.0) @ b).sum()

        return jax.grad(loss, (0, 1))(a, b)

    module = module_of(f, ones(4, 64, 32), ones(4, 32, 512), ones(4, 512, 32))
    rules = state_of(module).graph.rules
    signs = {r.id for op in module.ops for r in op.results if r.type.dtype == bool}
    assert signs
    for recomputes in (True, False):
        machine = GPU.with_traits(recomputes_comparisons=recomputes)
        stored = analyse_program(module, rules, machine).buffers.materialized.made
        assert signs.isdisjoint(stored) is recomputes


@pytest.mark.parametrize(
    ("padding", "holes", "rows"),
    [((1, 1), 1, 0), ((2, 0), 1, 34), ((1, 1), 2, 65), ((1, 2), 2, 66)],
)
def test_images_padded_in_memory(padding: tuple[int, int], holes: int, rows: int) -> None:
    """A convolution pads both ends alike; all other padding makes a copy of the image."""

    def f(image: Any, window: Any) -> Any:
        return lax.conv_general_dilated(
            *(image, window, (1,), (padding,)),
            lhs_dilation=(holes,),
            dimension_numbers=("NHC", "HIO", "NHC"),
        )

    state = state_of(module_of(f, ones(8, 32, 16), ones(3, 16, 16)))
    copied = cost_of(state, ROUND.with_traits(pads_images=True)).peak_bytes
    assert copied - cost_of(state).peak_bytes == pytest.approx(8 * rows * 16 * 4)


def test_images_without_pixels() -> None:
    def f(image: Any, window: Any) -> Any:
        return lax.conv_general_dilated(
            *(image, window, (1,), ((2, 1),)), dimension_numbers=("NHC", "HIO", "NHC")
        )

    state = state_of(module_of(f, ones(8, 0, 16), ones(3, 16, 16)))
    assert cost_of(state, ROUND.with_traits(pads_images=True)) == cost_of(state)


def test_searches_for_the_largest() -> None:
    """Each element of a row takes its share of time; sorts and sums do not."""
    machine = ROUND.with_traits(selection_bytes=100.0)

    def more(fn: Any) -> float:
        state = state_of(module_of(fn, ones(64, 512)))
        return cost_of(state, machine).seconds - cost_of(state).seconds

    expected = 64 * 512 * 100.0 / ROUND.attained_hbm_bytes_per_s
    assert more(lambda x: lax.top_k(x, 8)[0]) == pytest.approx(expected)
    assert more(lambda x: jnp.sort(x, axis=1)) == more(lambda x: x.sum(axis=1)) == 0.0


@pytest.mark.parametrize("tiled", [False, True])
def test_convolutions_with_few_features(tiled: bool) -> None:
    """Gradients of 8 input and 24 output features: the fewer on one device count. With n of them
    on a device the seconds grow by h / n; a device that has half of the features has half of the
    operations.
    """

    def f(image: Any, window: Any) -> Any:
        def loss(*args: Any) -> Any:
            numbers = ("NHC", "HIO", "NHC")
            return (lax.conv_general_dilated(*args, (1,), "SAME", dimension_numbers=numbers)).sum()

        return jax.grad(loss, (0, 1))(image, window)

    state = state_of(module_of(f, ones(64, 128, 8), ones(3, 8, 24)))
    if tiled:
        tile_arg(state, 1, 1, state.mesh.names[0])
    machine = ROUND.with_traits(half_rate_features=8)
    slow, fast = cost_of(state, machine), cost_of(state)
    operations = 2 * (2 * 64 * 128 * 24 * 3 * 8)
    expected = operations / ROUND.matmul_flops_per_s("float32")
    assert slow.seconds - fast.seconds == pytest.approx(expected, rel=0.02)


def test_traits_of_gpus() -> None:
    gpu, tpu = MACHINES["h100"].traits, MACHINES["tpu_v5e"].traits
    for name in ("recomputes_comparisons", "pads_images", "selection_bytes", "half_rate_features"):
        assert getattr(gpu, name)
        assert not getattr(tpu, name)
