"""Padding of batched dots and of scattered rows to whole tiles of the memory."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from partir_search.simulator.simulator import CostModel
from partir_search.simulator.target.machine import MACHINES
from tests.support import ROUND, cost_of, module_of, state_of, tile_arg

TILED = ROUND.with_traits(tile_lanes=128, tile_sublanes=8)


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def peaks(fn: Any, *args: Any, tiled: tuple[int, int] | None = None) -> list[float]:
    """Peak bytes beyond the arguments, as written and in tiles; the 4-way axis tiles a dim."""
    found = []
    for machine in (ROUND, TILED):
        state = state_of(module_of(fn, *args))
        if tiled is not None:
            tile_arg(state, *tiled, "model")
        cost = cost_of(state, machine)
        found.append(cost.peak_bytes - cost.argument_bytes)
    return found


def pairs(x: Any, y: Any) -> Any:
    return jnp.einsum("bif,bjf->bij", x, y)


def test_matrices_of_a_batched_dot() -> None:
    """f32[512, 27, 16]: 27 fills 32 sublanes or 128 lanes. The larger dim is innermost."""
    written, stored = peaks(pairs, f32(512, 27, 40), f32(512, 16, 40))
    assert written == 512 * 27 * 16 * 4
    assert stored == 512 * 128 * 16 * 4


def test_matrices_that_fill_tiles() -> None:
    written, stored = peaks(pairs, f32(64, 256, 40), f32(64, 16, 40))
    assert written == stored


def test_tiling_leaves_less_of_a_tile() -> None:
    """A quarter of 256 lanes fills half of a tile: on each device half of all bytes. Where the
    other dim is larger than the quarter, it becomes the innermost.
    """
    for other, share in ((16, 0.5), (256, 0.25)):
        whole = peaks(pairs, f32(64, 256, 40), f32(64, other, 40))
        quarter = peaks(pairs, f32(64, 256, 40), f32(64, other, 40), tiled=(0, 1))
        assert [a / b for a, b in zip(quarter, whole, strict=True)] == [0.25, share]
    few = peaks(pairs, f32(64, 64, 40), f32(64, 32, 40), tiled=(0, 1))
    assert few == [64 * 16 * 32 * 4, 64 * 16 * 128 * 4]


def test_arguments_are_padded() -> None:
    """Videos f32[8, 4, 64, 64, 3] take 128 of 64 lanes, points f32[65536, 3] four of 3 sublanes."""
    for shape, padding in (((8, 4, 64, 64, 3), 2.0), ((65536, 3), 4 / 3), ((256, 3, 8), 1.0)):
        state = state_of(module_of(lambda x: x.sum(), f32(*shape)))
        stored, written = (cost_of(state, m).argument_bytes for m in (TILED, ROUND))
        assert stored == pytest.approx(padding * written)


def test_slices_keep_the_order_of_their_dot() -> None:
    """f32[512, 1, 16] of f32[512, 27, 16]: one of 128 lanes."""

    def f(x: Any, y: Any) -> Any:
        each = pairs(x, y)
        return each[:, 3:4], each[:, 4:5], each.sum()

    written, stored = peaks(f, f32(512, 27, 40), f32(512, 16, 40))
    slices = 2 * 512 * 16 * 4
    assert written == 512 * 27 * 16 * 4 + slices + 4
    assert stored == 512 * 128 * 16 * 4 + 128 * slices + 4


def test_rows_of_a_scatter() -> None:
    """Rows of 32 numbers take 128; what reads them does not."""

    def f(table: Any, rows: Any, updates: Any) -> Any:
        return jnp.zeros_like(table).at[rows].add(updates)

    args = (f32(4096, 32), jax.ShapeDtypeStruct((64,), jnp.int32), f32(64, 32))
    written, stored = peaks(f, *args)
    assert stored - written == pytest.approx(4096 * 96 * 4, rel=0.01)
    doubled = peaks(lambda *a: 2.0 * f(*a), *args)
    assert doubled[1] - doubled[0] <= stored - written


def test_products_without_a_batch_or_a_sum() -> None:
    """XLA orders their dims without padding: plain products, outer products."""
    for fn, shapes in (
        (lambda x, y: x @ y, ((512, 40), (40, 16))),
        (lambda x, y: jnp.einsum("bi,bj->bij", x, y), ((512, 27), (512, 16))),
    ):
        written, stored = peaks(fn, *(f32(*shape) for shape in shapes))
        assert written == stored


def test_the_order_that_pads_least() -> None:
    """f32[64, 24, 24, 192]: no dim has 128 lanes; 192 of 256 are the best, 64 of 128 the second."""
    written, stored = peaks(lambda x, w: x @ w, f32(64, 24, 24, 40), f32(40, 192))
    assert written == 64 * 24 * 24 * 192 * 4
    assert stored == written * 256 / 192


def test_tiling_changes_the_best_order() -> None:
    """A quarter of 128 rows leaves 32 of 128 lanes; then 96 channels of 128 are better."""
    args = f32(128, 9, 40), f32(40, 96)
    whole = peaks(lambda x, w: x @ w, *args)
    quarter = peaks(lambda x, w: x @ w, *args, tiled=(0, 0))
    assert whole[0] == whole[1] == 4 * quarter[0]
    assert quarter[1] == 32 * 9 * 128 * 4


def test_operands_of_batched_dots() -> None:
    """The slices of f32[512, 24, 3 * 40] are read as matrices of 24 x 40: 40 of 128 lanes."""

    def scores(x: Any, w: Any) -> Any:
        q, k, v = jnp.split(x @ w, 3, axis=-1)
        return jnp.einsum("bij,bjf->bif", jnp.einsum("bif,bjf->bij", q, k), v).sum(), q.sum()

    def alone(x: Any, w: Any) -> Any:
        q, k, v = jnp.split(x @ w, 3, axis=-1)
        return jnp.einsum("bij,bjf->bif", jnp.einsum("bif,bjf->bij", q, k), v)

    qkv, args = 512 * 24 * 120 * 4, (f32(512, 24, 64), f32(64, 120))
    written, stored = peaks(alone, *args)
    assert stored >= qkv * 128 / 40
    assert peaks(scores, *args)[1] - written < stored - written  # a sum reads slices as they are


def test_results_that_plain_dots_read() -> None:
    """A batched dot's result is copied for a plain dot, into an order without padding."""
    shapes = f32(512, 24, 16), f32(512, 40, 16)
    padded = peaks(lambda x, y: pairs(x, y) + 1.0, *shapes)
    read = peaks(lambda x, y, w: pairs(x, y) @ w, *shapes, f32(40, 8))
    assert padded[1] == 512 * 24 * 128 * 4
    assert read[1] < padded[1]


def test_seconds_grow_with_the_bytes() -> None:
    """And only on machines with tiles: TPUs, not GPUs."""
    module = module_of(pairs, f32(65536, 27, 40), f32(65536, 16, 40))
    state = state_of(module)
    rules = list(state.partition().rules)
    seconds = {}
    for name in ("tpu_v5e", "h100"):
        for lanes in (1, 128):
            machine = MACHINES[name].with_traits(tile_lanes=lanes)
            seconds[name, lanes] = CostModel(module, rules, machine).load(state.partition())
    tiles = {key: load.roofline.seconds.sum() for key, load in seconds.items()}
    assert tiles["tpu_v5e", 128] > 1.5 * tiles["tpu_v5e", 1]
    assert MACHINES["tpu_v5p"].traits.tile_lanes == 128
    assert MACHINES["h100"].traits.tile_lanes == 1
