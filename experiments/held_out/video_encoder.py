"""Video classifier: residual 3-D convolutions, pooling over time and space."""

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
    floats,
    ids,
    trained,
    weights,
)


def make(
    batch: int = 32,
    frames: int = 16,
    side: int = 64,
    widths: tuple[int, ...] = (64, 128, 256),
    classes: int = 400,
) -> Made:
    layout = ("NDHWC", "DHWIO", "NDHWC")

    def init() -> Any:
        ins = (widths[0], *widths[:-1])
        blocks = [
            weights(a=(3, 3, 3, i, o), b=(3, 3, 3, o, o), by=(1, 1, 1, i, o), ga=(i,), gb=(o,))
            for i, o in zip(ins, widths, strict=True)
        ]
        return {"blocks": blocks} | weights(
            stem=(3, 7, 7, 3, widths[0]), head=(widths[-1], classes), bias=(classes,)
        )

    def convolve(x: Any, w: Any, *strides: int) -> Any:
        return jax.lax.conv_general_dilated(
            x, w.astype(BF16), strides, "SAME", dimension_numbers=layout
        )

    def activated(x: Any, gain: Any) -> Any:
        """ReLU of x, normalized over the batch, time and space."""
        wide = x.astype(jnp.float32)
        mean, variance = wide.mean((0, 1, 2, 3)), wide.var((0, 1, 2, 3))
        wide = (wide - mean) * jax.lax.rsqrt(variance + 1e-5) * (1.0 + gain)
        return jax.nn.relu(wide).astype(BF16)

    def loss(params: Any, videos: Any, labels: Any) -> Any:
        x = convolve(videos.astype(BF16), params["stem"], 1, 2, 2)
        for number, p in enumerate(params["blocks"]):
            stride = 2 if number else 1
            y = activated(x, p["ga"])
            x = convolve(y, p["by"], *[stride] * 3)
            x = x + convolve(
                activated(convolve(y, p["a"], *[stride] * 3), p["gb"]), p["b"], 1, 1, 1
            )
        pooled = jax.nn.relu(x).mean((1, 2, 3))
        return cross_entropy(dense(pooled, params["head"]) + params["bias"], labels)

    tx = optax.sgd(0.1, momentum=0.9)
    return trained(loss, init, tx, floats(batch, frames, side, side, 3), ids(batch))
