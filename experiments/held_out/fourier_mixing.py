"""FNet: tokens and features mixed by discrete Fourier transforms, masked words predicted."""

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
    layer_norm,
    trained,
    weights,
)


def make(
    batch: int = 64,
    length: int = 1024,
    d: int = 512,
    layers: int = 3,
    vocab: int = 8192,
    masked: int = 128,
) -> Made:
    def init() -> Any:
        norms = dict.fromkeys(("g0", "b0", "g1", "b1"), (d,))
        products = {"up": (d, 4 * d), "down": (4 * d, d)}
        return {
            "layers": [weights(**norms, **products) for _ in range(layers)],
            **weights(table=(vocab, d), at=(length, d), out=(d, vocab)),
        }

    def layer(p: Any, x: Any) -> Any:
        mixed = jnp.fft.fft(jnp.fft.fft(x.astype(jnp.float32), axis=-1), axis=1).real
        x = layer_norm(x + (mixed / (length * d) ** 0.5).astype(BF16), p["g0"], p["b0"])
        y = dense(jax.nn.gelu(dense(x, p["up"])), p["down"])
        return layer_norm(x + y, p["g1"], p["b1"])

    def loss(params: Any, tokens: Any, places: Any, labels: Any) -> Any:
        """Mean cross entropy of the masked words at `places` [batch, masked]."""
        x = (params["table"][tokens] + params["at"]).astype(BF16)
        for p in params["layers"]:
            x = layer(p, x)
        found = jnp.take_along_axis(x, places[..., None], axis=1)
        return cross_entropy(dense(found, params["out"]), labels)

    words = ids(batch, length), ids(batch, masked), ids(batch, masked)
    return trained(loss, init, optax.adamw(1e-4), *words)
