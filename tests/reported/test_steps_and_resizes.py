"""Reads in steps, resizes by any ratio and look-ups beside a tiled dim's elements: halos move."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from partir_search.ir.mesh import MeshShape
from partir_search.lowering.localize import localize
from partir_search.lowering.reshard_steps import COLLECTIVES
from tests.reported.test_shifted_reads import planned
from tests.support import assert_same, check_partition, module_of, run_emitted, state_of, tile_arg

N, M, C = 128, 16, 2
ROW = M * C * 4  # bytes
MESHES = {"8": MeshShape(("r",), (8,)), "4x2": MeshShape(("r", "c"), (4, 2))}
Form = Callable[[Any], Any]
KERNEL = np.random.default_rng(0).normal(size=(3, 3, C, C)).astype(np.float32) / 4
SECOND = np.eye(N, k=1) + np.eye(N, k=-1) - 2 * np.eye(N)
LAYOUT = ("NHWC", "HWIO", "NHWC")


def red_black(u: Any) -> Any:
    u = u.at[:, 1:-1:2].set(0.5 * (u[:, :-2:2] + u[:, 2::2]))
    return u.at[:, 2:-1:2].set(0.5 * (u[:, 1:-2:2] + u[:, 3::2]))


def four_colours(u: Any) -> Any:
    for a, b in ((1, 1), (1, 2), (2, 1), (2, 2)):
        rows, columns = slice(a + 1, N - 1 + a + 1, 2), slice(b, M - 1, 2)
        inside = (slice(None), slice(a, -1, 2), slice(b, -1, 2))
        n = len(range(a, N - 1, 2))
        u = u.at[inside].set(0.25 * (u[:, rows, columns][:, :n] + u[inside]))
    return u


def finer(u: Any) -> Any:
    """A grid with an element between each two."""
    middles = 0.5 * (u[:, 1:] + u[:, :-1])
    return jnp.zeros((1, 2 * N - 1, M, C)).at[:, ::2].set(u).at[:, 1::2].set(middles)


def rollout(u: Any) -> Any:
    return lax.scan(lambda c, _: (red_black(c), None), u, None, length=2)[0]


def resized(rows: int, method: str) -> Form:
    return lambda x: jax.image.resize(x, (1, rows, M, C), method)


def strided(mode: str) -> Form:
    def form(x: Any) -> Any:
        p = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), mode=mode)  # type: ignore[call-overload]
        return lax.conv_general_dilated(p, KERNEL, (2, 2), "VALID", dimension_numbers=LAYOUT)

    return form


def average(x: Any) -> Any:
    p = jnp.pad(x, ((0, 0), (1, 1), (0, 0), (0, 0)), mode="wrap")
    return lax.reduce_window(p, 0.0, lax.add, (1, 3, 1, 1), (1, 2, 1, 1), "VALID")


def maxima(mode: str, stride: int) -> Form:
    def form(x: Any) -> Any:
        ends = ((0, 0), (1, 1), (0, 0), (0, 0))
        p = jnp.pad(x, ends, mode=mode) if mode else x  # type: ignore[call-overload]
        return lax.reduce_window(p, -jnp.inf, lax.max, (1, 3, 1, 1), (1, stride, 1, 1), "VALID")

    return form


FORMS: dict[str, tuple[Form, int]] = {  # function, rows of the largest collective
    "red-black": (red_black, 2),
    "four colours": (four_colours, 3),
    "red-black, loop": (rollout, 2),
    "every second": (lambda u: u[:, 1::2] * u[:, ::2], 0),
    "every fourth": (lambda u: u[:, 3::4] + u[:, 1:-1:4], 1),
    "added to every second": (lambda u: u.at[:, ::2].add(u[:, 1::2]), 0),
    "multiplied": (lambda u: u.at[:, 1::2].multiply(u[:, ::2]), 0),
    "minima": (lambda u: u.at[:, 1:-1:2].min(u[:, 2::2]), 1),
    "finer": (finer, 1),
    "resized by 3/2": (resized(3 * N // 2, "bilinear"), 1),
    "resized by 3/4": (resized(3 * N // 4, "cubic"), 2),
    "resized to 2n - 2": (resized(2 * N - 2, "bilinear"), 3),
    "resized to n + 4": (resized(N + 4, "lanczos3"), 8),
    "resized to 2n/3": (resized(2 * N // 3, "linear"), 9),
    "nearest, by 3/2": (resized(3 * N // 2, "nearest"), 1),
    "nearest, to 2n - 2": (resized(2 * N - 2, "nearest"), 3),
    "banded matrix": (lambda x: jnp.einsum("ij,bjmc->bimc", SECOND.astype(np.float32), x), 1),
    "clipped places": (lambda x: x[:, np.clip(np.arange(N) + 1, 0, N - 1)] - x, 1),
    "places modulo n": (lambda x: jnp.take(x, (jnp.arange(N) + 1) % N, axis=1) * x, 1),
    "into faces": (lambda x: jnp.zeros((1, N + 1, M, C)).at[:, np.arange(1, N + 1)].add(x), 8),
    "wrapped, stride 2": (strided("wrap"), 8),
    "reflected, stride 2": (strided("reflect"), 8),
    "edges, stride 2": (strided("edge"), 8),
    "averages, stride 2": (average, 9),
    "maxima": (maxima("", 1), 2),
    "maxima, stride 2": (maxima("", 2), 2),
    "maxima, wrapped": (maxima("wrap", 1), 9),
    "maxima, reflected, stride 2": (maxima("reflect", 2), 9),
}


@pytest.mark.devices
@pytest.mark.parametrize("form", FORMS)
def test_halos_move(form: str) -> None:
    fn, most = FORMS[form]
    x = jax.random.normal(jax.random.key(1), (1, N, M, C))

    def forward(x: Any) -> Any:
        return (jnp.sin(fn(x)).sum(),)

    def gradient(x: Any) -> Any:
        return jax.value_and_grad(lambda x: jnp.sin(fn(x)).sum())(x)

    for mesh, step in (("8", gradient), ("4x2", forward)):
        state = planned(step, MESHES[mesh], x)
        for move, _ in localize(state.partition()).reshards():
            if move.step.kind in COLLECTIVES:
                assert move.payload_bytes <= max(most * ROW, 8), (move.op, move.payload_bytes / ROW)
        assert_same(run_emitted(state.partition(), [x]), jax.tree.leaves(jax.jit(step)(x)))


@pytest.mark.devices
def test_steps_that_read_nothing() -> None:
    """A step past the end of a short dim, as `lax.associative_scan` takes of one element."""

    def fn(x: Any) -> Any:
        return x[2::3], jax.lax.associative_scan(jnp.add, x)

    x = jnp.arange(16.0).reshape(2, 8)
    module = module_of(fn, x)
    state = state_of(module)
    tile_arg(state, 0, 1, "batch")
    check_partition(state.partition(), fn, (x,))
