"""Wave-U-Net: strided and transposed 1-D convolutions, skipped features concatenated."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from experiments.held_out.training import BF16, Made, floats, trained, weights


def make(
    batch: int = 32,
    length: int = 16_384,
    widths: tuple[int, ...] = (64, 128, 256, 512),
    sources: int = 4,
    width: int = 15,
) -> Made:
    layout = ("NWC", "WIO", "NWC")

    def init() -> Any:
        ins = (2, *widths[:-1])
        down = [
            weights(w=(width, i, o), gate=(1, o, 2 * o), bias=(o,))
            for i, o in zip(ins, widths, strict=True)
        ]
        up = [
            weights(w=(5, 2 * o, o), back=(4, o, i), bias=(i,))
            for i, o in zip((widths[0], *widths[:-1]), widths, strict=True)
        ]
        last = weights(middle=(width, widths[-1], widths[-1]), out=(1, widths[0] + 2, 2 * sources))
        return {"down": down, "up": up[::-1]} | last

    def convolve(x: Any, w: Any, stride: int = 1) -> Any:
        return jax.lax.conv_general_dilated(
            x, w.astype(BF16), (stride,), "SAME", dimension_numbers=layout
        )

    def gated(x: Any) -> Any:
        a, b = jnp.split(x, 2, axis=-1)
        return a * jax.nn.sigmoid(b)

    def separated(params: Any, mixed: Any) -> Any:
        """Signals [batch, length, 2 * sources] of a mixture [batch, length, 2]."""
        x, skipped = mixed, []
        for p in params["down"]:
            x = jax.nn.leaky_relu(convolve(x, p["w"], 2) + p["bias"].astype(BF16), 0.2)
            x = gated(convolve(x, p["gate"]))
            skipped.append(x)
        x = jax.nn.leaky_relu(convolve(x, params["middle"]), 0.2)
        for p, skip in zip(params["up"], skipped[::-1], strict=True):
            x = jax.nn.leaky_relu(convolve(jnp.concatenate([x, skip], axis=-1), p["w"]), 0.2)
            x = jax.lax.conv_transpose(
                x, p["back"].astype(BF16), (2,), "SAME", dimension_numbers=layout
            ) + p["bias"].astype(BF16)
        return jnp.tanh(convolve(jnp.concatenate([x, mixed], axis=-1), params["out"]))

    def loss(params: Any, signals: Any) -> Any:
        parts = signals.reshape(batch, length, sources, 2)
        found = separated(params, parts.sum(axis=2).astype(BF16)).astype(jnp.float32)
        wave = jnp.abs(found - signals).mean()
        step = jnp.abs(jnp.diff(found, axis=1) - jnp.diff(signals, axis=1)).mean()
        return wave + step

    return trained(loss, init, optax.adam(3e-4), floats(batch, length, 2 * sources))
