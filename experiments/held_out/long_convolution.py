"""Hyena: gated convolutions as long as the sequence, by FFT, with filters that a network makes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from experiments.held_out.training import (
    BF16,
    Made,
    cross_entropy,
    dense,
    ids,
    rms_norm,
    trained,
    weights,
)


def make(
    batch: int = 16,
    length: int = 4096,
    d: int = 512,
    layers: int = 2,
    waves: int = 16,
    hidden: int = 64,
    vocab: int = 16_384,
) -> Made:
    def init() -> Any:
        layer = {"norm": (d,), "in": (d, 3 * d), "short": (3, 1, 3 * d), "out": (d, d)}
        layer |= {"f0": (1 + 2 * waves, hidden), "f1": (hidden, hidden), "f2": (hidden, d)}
        layer |= {"decay": (d,), "skip": (d,), "norm2": (d,), "up": (d, 4 * d), "down": (4 * d, d)}
        return {
            "layers": [weights(**layer) for _ in range(layers)],
            **weights(table=(vocab, d), last=(d,)),
        }

    def filters(p: Any) -> Any:
        """Filters [length, d] of positions, with a decay per channel."""
        at = jnp.linspace(0.0, 1.0, length)[:, None]
        angles = 2 * jnp.pi * at * jnp.arange(1, waves + 1)
        h = jnp.concatenate([at, jnp.sin(angles), jnp.cos(angles)], axis=-1)
        h = jnp.sin(jnp.sin(h @ p["f0"]) @ p["f1"]) @ p["f2"]
        return h * jnp.exp(-at * length * 0.01 * jax.nn.softplus(p["decay"]))

    def convolve(x: Any, h: Any) -> Any:
        """Causal convolution of x [batch, length, d] with h [length, d], in f32."""
        n = 2 * length
        spectrum = jnp.fft.rfft(x.astype(jnp.float32), n, axis=1) * jnp.fft.rfft(h, n, axis=0)
        return jnp.fft.irfft(spectrum, n, axis=1)[:, :length]

    def layer(p: Any, x: Any) -> Any:
        y = dense(rms_norm(x, p["norm"]), p["in"])
        y = jax.lax.conv_general_dilated(
            y,
            p["short"].astype(BF16),
            (1,),
            [(2, 0)],
            dimension_numbers=("NWC", "WIO", "NWC"),
            feature_group_count=3 * d,
        )
        gate, key, value = jnp.split(y, 3, axis=-1)
        mixed = key * value
        found = convolve(mixed, filters(p)).astype(BF16) + mixed * p["skip"].astype(BF16)
        x = x + dense(gate * found, p["out"])
        return x + dense(jax.nn.gelu(dense(rms_norm(x, p["norm2"]), p["up"])), p["down"])

    def loss(params: Any, tokens: Any, labels: Any) -> Any:
        x = params["table"][tokens].astype(BF16)
        for p in params["layers"]:
            x = layer(p, x)
        return cross_entropy(dense(rms_norm(x, params["last"]), params["table"].T), labels)

    return trained(loss, init, optax.adamw(3e-4), ids(batch, length), ids(batch, length))
