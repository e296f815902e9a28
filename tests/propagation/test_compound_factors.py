"""Several factors on one dim: reshapes whose dims are tiled in mixed radix by several axes."""

from __future__ import annotations

import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from partir_search.ir.mesh import MeshShape
from partir_search.ir.partition import Partition
from partir_search.lowering.localize import localize
from partir_search.rules.shape import reshape_factors
from tests.support import check_partition, module_of, state_of, tile_arg

THREE = MeshShape(("x", "y", "z"), (2, 2, 2))
rng = np.random.default_rng(0)


def floats(*shape: int) -> jax.Array:
    return jnp.asarray(rng.normal(size=shape), jnp.float32)


def kinds(partition: Partition) -> list[str]:
    return [move.step.kind for move, _ in localize(partition).reshards()]


@pytest.mark.parametrize(
    ("old", "new", "operand", "result", "sizes", "major_factors"),
    [
        ((12,), (4, 3), (0,), (0, 1), [4, 3], [(), (0,)]),
        ((4, 3), (12,), (0, 1), (0,), [4, 3], [(), (0,)]),
        ((4, 8), (8, 4), (0, 1), (0, 2), [4, 2, 4], [(), (0,), (1,)]),
        ((32,), (2, 4, 4), (0,), (0, 1, 2), [2, 4, 4], [(), (0,), (0, 1)]),
        ((6, 4), (8, 3), (0, -1), (0, -1), [2], [()]),
        ((6, 4, 5), (8, 3, 5), (0, -1, 1), (0, -1, 1), [2, 5], [(), ()]),
        ((1, 4, 1), (4,), (-1, 0, -1), (0,), [4], [()]),
        ((3, 2), (2, 3), (-1, -1), (-1, -1), [], []),
        ((), (1, 1), (), (-1, -1), [], []),
    ],
)
def test_factors_of_a_reshape(
    old: Any, new: Any, operand: Any, result: Any, sizes: Any, major_factors: Any
) -> None:
    assert reshape_factors(old, new) == (operand, result, sizes, major_factors)


@pytest.mark.parametrize("seed", range(20))
def test_factors_multiply_to_the_dims(seed: int) -> None:
    """No dim holds more factors than fit, and a shape without odd rests is factored whole."""
    draw = np.random.default_rng(seed)
    radix = [int(n) for n in draw.integers(1, 4, 6)]

    def shape() -> tuple[int, ...]:
        cuts = sorted(set(draw.integers(0, 7, 3).tolist()) | {0, 6})
        return tuple(math.prod(radix[a:b]) for a, b in itertools.pairwise(cuts))

    old, new = shape(), shape()
    _, _, sizes, major_factors = reshape_factors(old, new)
    assert math.prod(old) % math.prod(sizes) == 0
    assert len(major_factors) == len(sizes)
    nested = {math.prod(old[:i]) for i in range(len(old))}
    nested |= {math.prod(new[:i]) for i in range(len(new))}
    steps = sorted(nested | {math.prod(old)})
    if all(b % a == 0 for a, b in itertools.pairwise(steps)):
        assert math.prod(sizes) == math.prod(old)


@pytest.mark.devices
@pytest.mark.parametrize(
    ("old", "new", "tiles"),
    [
        ((8, 3), (2, 4, 3), [(0, "x"), (0, "y")]),
        ((8, 3), (2, 4, 3), [(0, "y"), (0, "x")]),
        ((8, 3), (2, 2, 2, 3), [(0, "z"), (0, "x"), (0, "y")]),
        ((2, 4, 3), (8, 3), [(0, "x"), (1, "y")]),
        ((2, 4, 3), (8, 3), [(0, "z"), (1, "x"), (1, "y")]),
        ((2, 8, 3), (4, 4, 3), [(0, "y"), (1, "z"), (1, "x")]),
    ],
)
def test_axes_stack_on_one_dim(old: Any, new: Any, tiles: Any) -> None:
    """The first axis uses up the major factor; the next ones go on beneath it. Nothing moves."""

    def f(x: Any) -> Any:
        return jnp.sin(x).reshape(new) * 2

    args = (floats(*old),)
    state = state_of(module_of(f, *args), THREE)
    for dim, axis in tiles:
        tile_arg(state, 0, dim, axis)
    partition = state.partition()
    assert kinds(partition) == []
    result = partition.module.body.results[0]
    assert sum(len(axes) for axes in partition.layout(result)) == len(tiles)  # type: ignore[arg-type]
    check_partition(partition, f, args)


@pytest.mark.devices
def test_minor_factor_alone_is_strided_and_does_not_pass() -> None:
    """A tile of [2, 4] along dim 1 is no block of [8]: the value is gathered before."""

    def f(x: Any) -> Any:
        return x.reshape(8) * 2

    args = (floats(2, 4),)
    state = state_of(module_of(f, *args), THREE)
    tile_arg(state, 0, 1, "y")
    assert kinds(state.partition()) == ["all_gather"]
    check_partition(state.partition(), f, args)


@pytest.mark.devices
def test_orders_that_contradict() -> None:
    """One reshape needs x before y, the other y before x: one of them moves data, both are right.

    Actions come so that both loop before the order is known.
    """

    def f(a: Any, b: Any) -> Any:
        return a.reshape(8) * 2, b.reshape(8) * 3

    args = (floats(2, 4), floats(2, 4))
    state = state_of(module_of(f, *args), THREE)
    for arg, dim, axis in [(0, 0, "x"), (0, 1, "y"), (1, 0, "y"), (1, 1, "x")]:
        tile_arg(state, arg, dim, axis)
    partition = state.partition()
    moved = kinds(partition)
    assert moved
    assert set(moved) <= {"all_gather", "all_to_all", "slice"}
    check_partition(partition, f, args)


@pytest.mark.devices
def test_grouped_query_attention_on_more_devices_than_kv_heads() -> None:
    """4 heads in 2 groups on 4 devices: keys and values stay on 2, one sum at the end."""

    def attention(x: Any, wq: Any, wk: Any, wv: Any, wo: Any) -> Any:
        q = jnp.einsum("bsd,dhe->bshe", x, wq).reshape(2, 4, 2, 2, 4)
        k, v = jnp.einsum("bsd,dhe->bshe", x, wk), jnp.einsum("bsd,dhe->bshe", x, wv)
        p = jax.nn.softmax(jnp.einsum("bqhge,bkhe->bhgqk", q, k), axis=-1)
        out = jnp.einsum("bhgqk,bkhe->bqhge", p, v).reshape(2, 4, 4, 4)
        return jnp.einsum("bshe,hed->bsd", out, wo)

    args = (floats(2, 4, 8), *(floats(8, h, 4) for h in (4, 2, 2)), floats(4, 4, 8))
    state = state_of(module_of(attention, *args), THREE)
    tile_arg(state, 1, 1, "x")
    tile_arg(state, 1, 1, "y")
    partition = state.partition()
    names = [partition.layout(v) for v in partition.module.body.args]
    assert names[1][1] == (0, 1)
    assert names[4][0] == (0, 1)
    assert names[2][1] == names[3][1] == (0,)
    assert kinds(partition) == ["all_reduce"]
    check_partition(partition, attention, args)
