"""Pieces of concatenations, images, slices and views, and epilogues in place."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from tests.support import ROUND, cost_of, module_of, state_of, tile_arg

X = jax.ShapeDtypeStruct((64, 128), jnp.float32)
SIZE = 64 * 128 * 4  # bytes of X


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def peak(fn: Any, *args: Any, tiled: tuple[int, int] | None = None, **traits: Any) -> float:
    """Peak bytes beyond the arguments; the 4-way axis tiles (argument, dim)."""
    state = state_of(module_of(fn, *args))
    if tiled:
        tile_arg(state, *tiled, "model")
    cost = cost_of(state, ROUND.with_traits(**traits))
    return cost.peak_bytes - cost.argument_bytes


def more(fn: Any, *args: Any, trait: str, **others: Any) -> float:
    """Peak bytes that a trait adds."""
    with_trait, without = (peak(fn, *args, **{trait: on}, **others) for on in (True, False))
    return with_trait - without


def convolve(x: Any, w: Any) -> Any:
    dims = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=dims)


def test_computed_pieces_that_a_dot_reads() -> None:
    """Sines and cosines f32[64, 128] of a rotary embedding; neither arguments nor sums."""

    def added(fn: Any) -> float:
        return more(fn, X, f32(256, 8), trait="stores_concatenated_pieces")

    def waves(x: Any) -> Any:
        return jnp.concatenate([jnp.sin(x), jnp.cos(x)], axis=-1)

    assert added(lambda x, w: waves(x) @ w) == 2 * SIZE
    assert added(lambda x, w: waves(x).reshape(8, 8, 256) @ w) == 2 * SIZE
    assert added(lambda x, w: jnp.concatenate([x, x], axis=-1) @ w) == 0
    assert added(lambda x, w: waves(x).sum() + w) == 0


@pytest.mark.parametrize("wide, padding", [(128, 128 / 8), (64, 1)])
def test_narrow_pieces_beside_wide_ones(wide: int, padding: float) -> None:
    """Sines f32[128, 16, 8] lie in 128 lanes, as sines of 128 numbers; beside 64, by columns."""

    def fn(x: Any, y: Any, w: Any) -> Any:
        return jnp.concatenate([jnp.sin(x), jnp.sin(y)], axis=-1) @ w

    args = f32(128, 16, wide), f32(128, 16, 8), f32(wide + 8, 128)
    traits = {"tile_lanes": 128, "tile_sublanes": 8}
    found = more(fn, *args, trait="stores_concatenated_pieces", **traits)
    assert found == 128 * 16 * 4 * (wide + 8 * padding)


def test_repeated_pieces() -> None:
    """Features repeated for 16 or 64 neighbours are stored; for 256, each reader repeats them."""

    def added(copies: int, **traits: float) -> float:
        def edges(x: Any, y: Any, w: Any) -> Any:
            return jnp.concatenate([y, jnp.broadcast_to(x[:, None], y.shape)], axis=-1) @ w

        args = f32(32, 64), f32(32, copies, 64), f32(128, 8)
        return more(edges, *args, trait="stores_concatenated_pieces", **traits)

    assert [added(n) for n in (16, 64)] == [n * 32 * 64 * 4 for n in (16, 64)]
    assert added(256) == 0
    assert added(256, stored_repeat_fraction=1 / 512) == 256 * 32 * 64 * 4


def test_moves_with_gaps_between_elements() -> None:
    """Operand and result of an interior pad, result of a slice with strides."""

    def added(move: Any) -> float:
        return more(lambda x: move(jnp.sin(x)).sum(), X, trait="materializes_dilations")

    between = added(lambda y: jax.lax.pad(y, 0.0, [(0, 0, 1), (0, 0, 0)]))
    assert between == (64 + 127) * 128 * 4 - 4  # before the sum
    assert added(lambda y: jax.lax.pad(y, 0.0, [(1, 0, 0), (0, 0, 0)])) == 0
    assert added(lambda y: y[::2]) == SIZE / 2
    assert added(lambda y: y[:32]) == 0


def test_values_sliced_twice() -> None:
    trait, twice = "stores_values_sliced_twice", lambda y: y[:8].sum() + y[8:16].sum()
    assert more(lambda x: twice(jnp.sin(x)), X, trait=trait) == pytest.approx(SIZE, rel=1e-3)
    assert more(lambda x: jnp.sin(x)[:8].sum(), X, trait=trait) == 0


@pytest.mark.parametrize(
    ("config", "stored"), [((-1, 0, 0), 1), ((0, -1, 0), 1), ((1, -1, 0), 1), ((0, 1, 0), 0)]
)
def test_pads_that_cut_are_slices(config: tuple[int, int, int], stored: int) -> None:
    """Both halves of a spline's bases, one of them padded to divide; a longer pad reads all."""

    def halves(x: Any) -> Any:
        y = jnp.sin(x)
        return y[:-1].sum() + (jax.lax.pad(y, 0.0, [config, (0, 0, 0)]) ** 2).sum()

    added = more(halves, X, trait="stores_values_sliced_twice")
    assert added == pytest.approx(stored * SIZE, rel=1e-3)


def test_views_read_in_place() -> None:
    """Half of f32[64, 256], read by two dots: results beside the whole, and no copy."""

    def fn(x: Any, w: Any, u: Any, v: Any) -> Any:
        half = (x @ w).reshape(64, 2, 128)[:, 0]
        return half @ u, half @ v

    args = f32(64, 32), f32(32, 256), f32(128, 8), f32(128, 8)
    assert peak(fn, *args) == 3 * SIZE
    assert peak(fn, *args, reads_views_in_place=True) == 2 * SIZE + 2 * 64 * 8 * 4


def test_slices_of_a_projection_laid_out_for_dots() -> None:
    """Both halves of bf16[8, 24, 2, 4, 32] in lanes of 128, each read by two batched dots: all
    slices together take the padded bytes of the projection, which no array holds beside them.
    """

    def fn(x: Any, w: Any) -> Any:
        halves = (x @ w).reshape(8, 24, 2, 4, 32)
        q, k = halves[:, :, 0], halves[:, :, 1]
        scores = jnp.einsum("bqhe,bkhe->bhqk", q, k)
        return jnp.einsum("bhqk,bkhe->bqhe", scores, k), jnp.einsum("bhqk,bqhe->bkhe", scores, q)

    args = (
        jax.ShapeDtypeStruct((8, 24, 64), jnp.bfloat16),
        jax.ShapeDtypeStruct((64, 256), jnp.bfloat16),
    )
    tiles = {"tile_lanes": 128, "tile_sublanes": 8}
    assert more(fn, *args, trait="reads_views_in_place", **tiles) < 0


def test_small_inputs_of_fused_kernels() -> None:
    """Nine vectors, each 1/128 of f32[128, 128], are too many inputs at 1/128, none at 1/64."""

    def fn(x: Any, *vectors: Any) -> Any:
        return functools.reduce(jnp.multiply, map(jnp.sort, vectors), jnp.sin(x)).sum()

    args = f32(128, 128), *[f32(128)] * 9
    many, few = (peak(fn, *args, fused_input_fraction=f) for f in (1 / 128, 1 / 64))
    assert many - few == pytest.approx(128 * 128 * 4, rel=0.02)


def test_images_made_by_no_convolution() -> None:
    """Repeated pixels f32[4, 16, 16, 16] and converted arguments, but no functions of images."""
    x, w, bf16 = f32(4, 8, 8, 16), f32(3, 3, 16, 2), jnp.bfloat16

    def added(fn: Any) -> float:
        return more(fn, x, w, trait="stores_repeated_images")

    assert added(lambda x, w: convolve(x.astype(bf16), w.astype(bf16))) == 4 * 8 * 8 * 16 * 2
    assert added(lambda x, w: convolve(x.repeat(2, 1).repeat(2, 2), w)) == 4 * 16 * 16 * 16 * 4
    assert added(lambda x, w: convolve(jnp.sin(x), w)) == 0


@pytest.mark.parametrize("tiled, padding", [(None, 1), ((0, 0), 2)])
def test_minor_dims_of_images(tiled: tuple[int, int] | None, padding: int) -> None:
    """Batch and features f32[128, .., 64]: all lanes; of a quarter of the batch, 64 features."""
    args, tiles = (f32(128, 2, 128, 8), f32(3, 3, 8, 64)), {"tile_lanes": 128, "tile_sublanes": 8}
    written, stored = (peak(convolve, *args, tiled=tiled, **t) for t in ({}, tiles))
    assert stored == padding * written


@pytest.mark.parametrize("batch, padding", [(8, 128), (16, 8)])
def test_images_of_one_feature(batch: int, padding: int) -> None:
    """The one feature is innermost, unless the batch is larger than the sublanes of a tile."""
    args = f32(batch, 2, 128, 128), f32(3, 3, 128, 1)
    tiles = {"tile_lanes": 128, "tile_sublanes": 8}
    written, stored = (peak(convolve, *args, **t) for t in ({}, tiles))
    assert stored == padding * written == padding * batch * 2 * 128 * 4


def test_order_of_dims_behind_reshapes() -> None:
    """Squeezed images f32[8, 256, 128] of one feature lie in 128 lanes, as images; flat ones do
    not.
    """

    def stored(*shape: int) -> float:
        def fn(x: Any, w: Any) -> Any:
            return jnp.sin(convolve(x, w).reshape(shape))

        args, tiles = (
            (f32(8, 256, 128, 128), f32(3, 3, 128, 1)),
            {"tile_lanes": 128, "tile_sublanes": 8},
        )
        return peak(fn, *args, in_place_elementwise=False, **tiles)

    nbytes = 8 * 256 * 128 * 4
    assert stored(8, 256, 128) - stored(8, 256 * 128) == 127 * nbytes


@pytest.mark.parametrize("change", [lambda d: d, jnp.sin, lambda d: d + d[:, ::-1], jnp.transpose])
def test_gradients_keep_their_type(change: Any) -> None:
    """A gradient bf16[64, 256] of a dot, added, multiplied or transposed before it is widened."""

    def fn(x: Any, w: Any) -> Any:
        return jax.grad(lambda x: (change(x.astype(w.dtype)) @ weights(w)).sum())(x)

    def weights(w: Any) -> Any:
        return w.T if change is jnp.transpose else w

    shape = (512, 64) if change is jnp.transpose else (256, 512)
    w = jax.ShapeDtypeStruct(shape, jnp.bfloat16)
    assert more(fn, f32(64, 256), w, trait="keeps_dots_wide") == 0


@pytest.mark.parametrize("tiled, saved", [(None, 1), ((1, 1), 0), ((2, 1), 0.25)])
def test_epilogues_in_place(tiled: tuple[int, int] | None, saved: float) -> None:
    """A product writes into the buffer of the sorted factor or sign, but not beside an
    all_reduce, also where no op after the product reads the sorted array itself.
    """

    def factor(x: Any, a: Any, b: Any) -> Any:
        return jnp.sort(x, axis=0) * (a @ b)

    def sign(x: Any, a: Any, b: Any) -> Any:
        return jnp.where(jnp.sort(x, axis=0) > 0, a @ b, 0)

    args, told = (X, f32(64, 32), f32(32, 128)), {"in_place_elementwise": False}
    told |= {"tiled": tiled, "trait": "epilogues_write_in_place"}
    assert [more(fn, *args, **told) for fn in (factor, sign)] == [-saved * SIZE] * 2
