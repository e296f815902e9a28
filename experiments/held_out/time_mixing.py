"""Language model of shifted tokens and decaying sums (RWKV), by an associative scan."""

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
    batch: int = 16, length: int = 1024, d: int = 768, layers: int = 2, vocabulary: int = 16384
) -> Made:
    def init() -> Any:
        layer: dict[str, tuple[int, ...]] = dict.fromkeys(("k", "v", "r", "out", "open"), (d, d))
        layer |= {"up": (d, 4 * d), "down": (4 * d, d)}
        vectors = ("gain0", "bias0", "gain1", "bias1", "mk", "mv", "mr", "nk", "nr", "decay", "now")
        ends = weights(embed=(vocabulary, d), gain=(d,), bias=(d,), head=(d, vocabulary))
        layer |= dict.fromkeys(vectors, (d,))
        return {"layers": [weights(**layer) for _ in range(layers)], **ends}

    def shifted(x: Any) -> Any:
        return jnp.pad(x, ((0, 0), (1, 0), (0, 0)))[:, :-1]

    def between(x: Any, before: Any, share: Any) -> Any:
        share = jax.nn.sigmoid(share).astype(BF16)
        return x * share + before * (1 - share)

    def decaying(terms: Any, rate: Any) -> Any:
        """Sums of terms [batch, length, d] before each position, decaying by rate [d]."""

        def joined(a: Any, b: Any) -> Any:
            return a[0] * b[0], a[1] * b[0] + b[1]

        rates = jnp.broadcast_to(rate, terms.shape)
        return shifted(jax.lax.associative_scan(joined, (rates, terms), axis=1)[1])

    def time_mixed(p: Any, x: Any) -> Any:
        before = shifted(x)
        k, v, r = (dense(between(x, before, p["m" + n]), p[n]) for n in ("k", "v", "r"))
        weight = jnp.exp(jnp.minimum(k.astype(jnp.float32), 8.0))
        rate, now = jnp.exp(-jnp.exp(p["decay"])), jnp.exp(p["now"])
        told = weight * v.astype(jnp.float32)
        total = decaying(told, rate) + now * told
        mean = total / (decaying(weight, rate) + now * weight + 1e-6)
        return dense(jax.nn.sigmoid(r) * mean.astype(BF16), p["out"])

    def channel_mixed(p: Any, x: Any) -> Any:
        before = shifted(x)
        y = jnp.square(jax.nn.relu(dense(between(x, before, p["nk"]), p["up"])))
        return jax.nn.sigmoid(dense(between(x, before, p["nr"]), p["open"])) * dense(y, p["down"])

    def loss(params: Any, tokens: Any, labels: Any) -> Any:
        x = params["embed"][tokens].astype(BF16)
        for p in params["layers"]:
            x = x + time_mixed(p, layer_norm(x, p["gain0"], p["bias0"]))
            x = x + channel_mixed(p, layer_norm(x, p["gain1"], p["bias1"]))
        return cross_entropy(
            dense(layer_norm(x, params["gain"], params["bias"]), params["head"]), labels
        )

    return trained(loss, init, optax.adamw(3e-4), ids(batch, length), ids(batch, length))
