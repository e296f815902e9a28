"""Cases of decompositions, triangular systems and Fourier transforms."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import jax.scipy.linalg
from jax import lax

from tests.propagation.samples import Case, floats


def positive(x: Any) -> Any:
    """A batch of positive definite matrices."""
    return x @ x.swapaxes(-1, -2) + jnp.eye(x.shape[-1])


def apart(x: Any) -> Any:
    """A batch of well conditioned matrices."""
    return x + 4 * jnp.eye(x.shape[-1])


LINALG_CASES: dict[str, Case] = {
    "cholesky": ("cholesky", lambda x: jnp.linalg.cholesky(positive(x)), (floats(4, 3, 3),)),
    "eigh": ("eigh", lambda x: jnp.linalg.eigh(positive(x))[0], (floats(4, 3, 3),)),
    "fft": ("fft", lambda x: jnp.abs(jnp.fft.fft(x)), (floats(4, 6),)),
    "fft_planes": ("fft", lambda x: jnp.abs(jnp.fft.rfft2(x)), (floats(4, 6, 6),)),
    "linear_solve": (
        "lu",
        lambda a, b: jnp.linalg.solve(apart(a), b),
        (floats(2, 4, 4), floats(2, 4, 6)),
    ),
    "lu": ("lu", lambda x: jax.scipy.linalg.lu_factor(apart(x)), (floats(4, 3, 3),)),
    "qr": ("qr", lambda x: jnp.abs(jnp.linalg.qr(apart(x))[0]), (floats(4, 3, 3),)),
    "svd": ("svd", lambda x: jnp.linalg.svd(x, compute_uv=False), (floats(4, 3, 3),)),
    "triangular_solve": (
        "triangular_solve",
        lambda a, b: lax.linalg.triangular_solve(apart(a), b, left_side=True, lower=True),
        (floats(2, 4, 4), floats(2, 4, 6)),
    ),
    "triangular_solve_right": (
        "triangular_solve",
        lambda a, b: lax.linalg.triangular_solve(apart(a), b, lower=True),
        (floats(2, 4, 4), floats(2, 6, 4)),
    ),
    "tridiagonal_solve": (
        "tridiagonal_solve",
        lambda d, b: lax.linalg.tridiagonal_solve(d, d + 5, d, b),
        (floats(2, 4), floats(2, 4, 6)),
    ),
}
