"""Memory of discrete Fourier transforms made of products."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from tests.support import ROUND, cost_of, module_of, state_of, tile_arg

ROWS, N = 64, 512
WAVES = jax.ShapeDtypeStruct((ROWS, N), jnp.float32)
WHOLE = ROWS * N * 8  # bytes of c64[ROWS, N]


def peak(fn: Any, *args: Any, tiled: bool = False, arrays: float = 2.0) -> float:
    """Peak bytes beyond the arguments; the 4-way axis tiles the rows."""
    state = state_of(module_of(fn, *args))
    if tiled:
        tile_arg(state, 0, 0, "model")
    cost = cost_of(state, ROUND.with_traits(transform_arrays=arrays))
    return cost.peak_bytes - cost.argument_bytes


def power(x: Any) -> Any:
    spectrum = jnp.fft.rfft(x)
    return (spectrum.real**2 + spectrum.imag**2).sum(axis=-1)


def test_two_complex_arrays_of_full_length_are_live() -> None:
    assert peak(power, WAVES) == pytest.approx(2 * WHOLE, rel=0.02)
    assert peak(power, WAVES, arrays=0.0) == pytest.approx(WHOLE / 2, rel=0.02)


def test_inverse_transforms_have_the_same_workspace() -> None:
    spectrum = jax.ShapeDtypeStruct((ROWS, N // 2 + 1), jnp.complex64)
    found = peak(lambda x: jnp.fft.irfft(x, N), spectrum)
    assert found == pytest.approx(2 * WHOLE, rel=0.02)


def test_spectra_of_real_numbers_are_kept_at_full_length() -> None:
    """The gradient of the power reads the spectrum of the first waves during other transforms."""

    def fn(x: Any, y: Any) -> Any:
        first = jnp.fft.rfft(x)
        return first, power(y)

    assert peak(fn, WAVES, WAVES) == pytest.approx(3 * WHOLE, rel=0.02)


def test_transforms_of_two_dims_are_stored_cut() -> None:
    """The last dim is cut to half before the products along the other: half of `WHOLE` is kept."""

    def fn(x: Any, y: Any) -> Any:
        return jnp.fft.rfft2(x), power(y)

    assert peak(fn, WAVES, WAVES) == pytest.approx(2.5 * WHOLE, rel=0.02)


def test_workspaces_are_local() -> None:
    assert peak(power, WAVES, tiled=True) == pytest.approx(peak(power, WAVES) / 4, rel=0.02)
