"""Fourier neural operator: products of low frequencies of 2-D fields, steps of a simulation."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from experiments.held_out.training import Made, floats, trained, weights


def make(
    batch: int = 32, side: int = 128, d: int = 64, modes: int = 16, layers: int = 4, past: int = 10
) -> Made:
    def init() -> Any:
        spectral = (d, d, modes, modes, 2)
        layer = {"low": spectral, "high": spectral, "w": (d, d), "bias": (d,)}
        return {
            "layers": [weights(**layer) for _ in range(layers)],
            **weights(lift=(past + 2, d), hidden=(d, 2 * d), out=(2 * d, 1)),
        }

    def mixed(spectrum: Any, w: Any) -> Any:
        """Products of spectra [batch, x, y, d] with complex matrices per frequency."""
        return jnp.einsum("bxyi,ioxy->bxyo", spectrum, jax.lax.complex(w[..., 0], w[..., 1]))

    def spectral(p: Any, x: Any) -> Any:
        spectrum = jnp.fft.rfft2(x, axes=(1, 2))
        found = jnp.zeros_like(spectrum)
        found = found.at[:, :modes, :modes].set(mixed(spectrum[:, :modes, :modes], p["low"]))
        found = found.at[:, -modes:, :modes].set(mixed(spectrum[:, -modes:, :modes], p["high"]))
        return jnp.fft.irfft2(found, s=(side, side), axes=(1, 2))

    def loss(params: Any, fields: Any, after: Any) -> Any:
        at = jnp.linspace(0.0, 1.0, side)
        grid = jnp.stack(jnp.meshgrid(at, at, indexing="ij"), axis=-1)
        grid = jnp.broadcast_to(grid, (batch, side, side, 2))
        x = jnp.concatenate([fields, grid], axis=-1) @ params["lift"]
        for number, p in enumerate(params["layers"]):
            x = spectral(p, x) + x @ p["w"] + p["bias"]
            x = jax.nn.gelu(x) if number < layers - 1 else x
        found = jax.nn.gelu(x @ params["hidden"]) @ params["out"]
        wrong = jnp.sqrt(((found - after) ** 2).sum((1, 2, 3)))
        return (wrong / jnp.sqrt((after**2).sum((1, 2, 3)) + 1e-6)).mean()

    fields, after = floats(batch, side, side, past), floats(batch, side, side, 1)
    return trained(loss, init, optax.adam(1e-3), fields, after)
