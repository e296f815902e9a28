"""Results with a row-major layout on CPUs, executed where a later gather asks for another."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from tests.support import check_partition, module_of, state_of, tile_arg

TRANSFORMS = {"fft": jnp.fft.fft, "rfft2": jnp.fft.rfft2, "ifft": jnp.fft.ifft}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_gather_of_a_minor_dim_follows_a_transform(name: str) -> None:
    """XLA:CPU refuses an FFT with the layout that an all_gather of the second dim asks for."""

    def sorted_spectra(x: Any) -> Any:
        return jnp.sort(jnp.abs(TRANSFORMS[name](x)), axis=1)

    x = np.random.default_rng(0).normal(size=(2, 4, 6, 6)).astype(np.float32)
    state = state_of(module_of(sorted_spectra, x))
    tile_arg(state, 0, 1, "model")
    check_partition(state.partition(), sorted_spectra, (x,))
