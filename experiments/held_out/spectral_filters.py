"""Waves restored by learned filters of spectra, trained on spectrograms of several lengths."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from experiments.held_out.training import BF16, Made, dense, floats, layer_norm, trained, weights


def make(
    batch: int = 32,
    frames: int = 512,
    width: int = 64,
    d: int = 256,
    layers: int = 3,
    windows: tuple[int, ...] = (256, 1024),
) -> Made:
    spectrum = frames // 2 + 1

    def init() -> Any:
        layer = {"real": (spectrum, d), "imaginary": (spectrum, d), "gain": (d,), "bias": (d,)}
        layer |= {"up": (d, 2 * d), "down": (2 * d, d)}
        return {
            "layers": [weights(**layer) for _ in range(layers)],
            **weights(into=(width, d), out=(d, width)),
        }

    def layer(p: Any, x: Any) -> Any:
        y = layer_norm(x, p["gain"], p["bias"]).astype(jnp.float32)
        filters = jax.lax.complex(p["real"], p["imaginary"])
        y = jnp.fft.irfft(jnp.fft.rfft(y, axis=1) * filters, frames, axis=1).astype(BF16)
        return x + dense(jax.nn.silu(dense(y, p["up"])), p["down"])

    def magnitudes(wave: Any, window: int) -> Any:
        """Log magnitudes of the spectra of a wave's pieces [batch, pieces, window]."""
        pieces = wave.reshape(batch, -1, window) * jnp.hanning(window)
        found = jnp.fft.rfft(pieces, axis=-1)
        return jnp.log(found.real**2 + found.imag**2 + 1e-5)

    def loss(params: Any, noisy: Any, clean: Any) -> Any:
        x = dense(noisy.reshape(batch, frames, width).astype(BF16), params["into"])
        for p in params["layers"]:
            x = layer(p, x)
        wave = dense(x, params["out"]).astype(jnp.float32).reshape(batch, frames * width)
        total = jnp.abs(wave - clean).mean()
        for window in windows:
            total += jnp.abs(magnitudes(wave, window) - magnitudes(clean, window)).mean()
        return total

    waves = floats(batch, frames * width), floats(batch, frames * width)
    return trained(loss, init, optax.adam(2e-4), *waves)
