"""VQ-VAE: strided convolutions, the nearest vectors of a codebook straight through, a decoder."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from experiments.held_out.training import BF16, Made, floats, trained, weights


def make(
    batch: int = 128, side: int = 64, d: int = 256, codes: int = 1024, residual: int = 2
) -> Made:
    def init() -> Any:
        return {
            "down": weights(a=(4, 4, 3, d), b=(4, 4, d, d)),
            "coder": [weights(a=(3, 3, d, d), b=(1, 1, d, d)) for _ in range(residual)],
            "codes": weights(w=(codes, d))["w"],
            "decoder": [weights(a=(3, 3, d, d), b=(1, 1, d, d)) for _ in range(residual)],
            "up": weights(a=(4, 4, d, d), b=(4, 4, d, 3)),
        }

    layout = ("NHWC", "HWIO", "NHWC")

    def convolve(x: Any, w: Any, stride: int = 1) -> Any:
        return jax.lax.conv_general_dilated(
            x, w.astype(BF16), (stride, stride), "SAME", dimension_numbers=layout
        )

    def enlarge(x: Any, w: Any) -> Any:
        return jax.lax.conv_transpose(x, w.astype(BF16), (2, 2), "SAME", dimension_numbers=layout)

    def residuals(blocks: Any, x: Any) -> Any:
        for p in blocks:
            x = x + convolve(jax.nn.relu(convolve(jax.nn.relu(x), p["a"])), p["b"])
        return x

    def loss(params: Any, images: Any) -> Any:
        x = jax.nn.relu(convolve(images.astype(BF16), params["down"]["a"], 2))
        x = residuals(params["coder"], convolve(x, params["down"]["b"], 2)).astype(jnp.float32)
        table = params["codes"]
        far = (table**2).sum(axis=1) - 2.0 * jnp.einsum("bhwd,cd->bhwc", x, table)
        nearest = table[jnp.argmin(far, axis=-1)]
        still, kept = jax.lax.stop_gradient(nearest), jax.lax.stop_gradient(x)
        commitment = ((x - still) ** 2).mean() * 0.25 + ((nearest - kept) ** 2).mean()
        through = x + jax.lax.stop_gradient(nearest - x)
        y = residuals(params["decoder"], through.astype(BF16))
        y = enlarge(jax.nn.relu(enlarge(y, params["up"]["a"])), params["up"]["b"])
        return ((y.astype(jnp.float32) - images) ** 2).mean() + commitment

    return trained(loss, init, optax.adam(1e-3), floats(batch, side, side, 3))
