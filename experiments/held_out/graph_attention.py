"""Graph attention: the softmax of each node's incoming edges, by segment maxima and sums."""

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
    layer_norm,
    trained,
    weights,
)


def make(
    nodes: int = 65_536,
    edges: int = 524_288,
    features: int = 128,
    d: int = 512,
    heads: int = 4,
    layers: int = 2,
    classes: int = 64,
) -> Made:
    width = d // heads

    def init() -> Any:
        layer = {"norm": (d,), "shift": (d,), "w": (d, d), "skip": (d, d), "key": (width, 2)}
        return {
            "first": weights(w=(features, d))["w"],
            "layers": [weights(**layer) for _ in range(layers)],
            "head": weights(w=(d, classes))["w"],
        }

    def layer(p: Any, x: Any, source: Any, target: Any) -> Any:
        h = layer_norm(x, p["norm"], p["shift"])
        y = dense(h, p["w"]).reshape(nodes, heads, width)
        keys = (y @ p["key"].astype(BF16)).astype(jnp.float32)  # [nodes, heads, 2]
        score = jax.nn.leaky_relu(keys[source, :, 0] + keys[target, :, 1])
        most = jax.lax.stop_gradient(jax.ops.segment_max(score, target, num_segments=nodes))
        odds = jnp.exp(score - most[target])
        total = jax.ops.segment_sum(odds, target, num_segments=nodes)
        odds = odds / (total[target] + 1e-9)
        sent = y[source] * odds.astype(BF16)[:, :, None]
        found = jax.ops.segment_sum(sent, target, num_segments=nodes).reshape(nodes, d)
        return x + jax.nn.elu(found + dense(h, p["skip"]))

    def loss(params: Any, x: Any, source: Any, target: Any, labels: Any) -> Any:
        x = dense(x.astype(BF16), params["first"])
        for p in params["layers"]:
            x = layer(p, x, source, target)
        return cross_entropy(dense(x, params["head"]), labels)

    arguments = floats(nodes, features), ids(edges), ids(edges), ids(nodes)
    return trained(loss, init, optax.adam(1e-3), *arguments)
