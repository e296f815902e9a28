"""Normalizing flow of images: pixels to channels, products of channels, affine couplings."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from experiments.held_out.training import BF16, Made, floats, trained, weights


def make(
    batch: int = 128, size: int = 32, hidden: int = 256, levels: int = 2, steps: int = 3
) -> Made:
    layout = ("NHWC", "HWIO", "NHWC")

    def init() -> Any:
        found, channels = [], 3
        for _ in range(levels):
            channels *= 4
            half = channels // 2
            shapes = {"mix": (channels, channels), "a": (3, 3, half, hidden)}
            shapes |= {"b": (1, 1, hidden, hidden), "c": (3, 3, hidden, channels)}
            shapes |= {"scale": (channels,), "shift": (channels,)}
            found.append([weights(**shapes) for _ in range(steps)])
            channels = half
        return found

    def convolve(x: Any, w: Any) -> Any:
        return jax.lax.conv_general_dilated(
            x, w.astype(BF16), (1, 1), "SAME", dimension_numbers=layout
        )

    def step(p: Any, x: Any) -> tuple[Any, Any]:
        """A step of the flow on x [batch, h, w, c] in f32, and logarithms of determinants."""
        points = x.shape[1] * x.shape[2]
        x = (x + p["shift"]) * jnp.exp(p["scale"])
        x = jnp.einsum("bhwc,cd->bhwd", x, jnp.tril(p["mix"]))
        volume = points * (p["scale"] + jnp.log(jnp.abs(jnp.diag(p["mix"])) + 1e-6)).sum()
        kept, moved = jnp.split(x, 2, axis=-1)
        h = jax.nn.relu(convolve(kept.astype(BF16), p["a"]))
        h = convolve(jax.nn.relu(convolve(h, p["b"])), p["c"]).astype(jnp.float32)
        scale, shift = h[..., ::2], h[..., 1::2]
        logs = jax.nn.log_sigmoid(scale + 2.0)
        moved = (moved + shift) * jnp.exp(logs)
        return jnp.concatenate([kept, moved], axis=-1), volume + logs.sum(axis=(1, 2, 3))

    def loss(params: Any, images: Any) -> Any:
        x, total, bits = images, jnp.zeros(batch), jnp.zeros(batch)
        for level in params:
            b, h, w, c = x.shape
            x = x.reshape(b, h // 2, 2, w // 2, 2, c).transpose(0, 1, 3, 2, 4, 5)
            x = x.reshape(b, h // 2, w // 2, 4 * c)
            for p in level:
                x, volume = step(p, x)
                total += volume
            x, out = jnp.split(x, 2, axis=-1)
            bits += 0.5 * jnp.square(out).sum(axis=(1, 2, 3))
        bits += 0.5 * jnp.square(x).sum(axis=(1, 2, 3))
        return (bits - total).mean() / (3 * size * size)

    return trained(loss, init, optax.adam(1e-3), floats(batch, size, size, 3))
