"""WaveNet: gated causal convolutions of growing dilation, with sums of skipped outputs."""

from __future__ import annotations

from typing import Any

import jax
import optax

from experiments.held_out.training import (
    BF16,
    Made,
    cross_entropy,
    dense,
    ids,
    trained,
    weights,
)


def make(
    batch: int = 32,
    length: int = 8192,
    d: int = 256,
    skip: int = 512,
    levels: int = 256,
    dilations: tuple[int, ...] = (1, 2, 4, 8, 16, 32),
) -> Made:
    def init() -> Any:
        layer = {"gates": (2, d, 2 * d), "back": (d, d), "skip": (d, skip)}
        return {
            "table": weights(w=(levels, d))["w"],
            "layers": [weights(**layer) for _ in dilations],
            **weights(hidden=(skip, skip), head=(skip, levels)),
        }

    def convolve(x: Any, w: Any, dilation: int) -> Any:
        return jax.lax.conv_general_dilated(
            x,
            w.astype(BF16),
            (1,),
            [(dilation, 0)],
            rhs_dilation=(dilation,),
            dimension_numbers=("NWC", "WIO", "NWC"),
        )

    def loss(params: Any, samples: Any, labels: Any) -> Any:
        x, total = params["table"][samples].astype(BF16), 0.0
        for p, dilation in zip(params["layers"], dilations, strict=True):
            y = convolve(x, p["gates"], dilation)
            gated = jax.numpy.tanh(y[..., :d]) * jax.nn.sigmoid(y[..., d:])
            x = x + dense(gated, p["back"])
            total = total + dense(gated, p["skip"])
        h = jax.nn.relu(dense(jax.nn.relu(total), params["hidden"]))
        return cross_entropy(dense(h, params["head"]), labels)

    return trained(loss, init, optax.adam(1e-3), ids(batch, length), ids(batch, length))
