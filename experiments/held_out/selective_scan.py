"""Mamba: a selective state-space layer, scanned chunk by chunk with rematerialized chunks."""

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
    length: int = 1024,
    d: int = 768,
    inner: int = 1536,
    state: int = 16,
    rank: int = 48,
    layers: int = 2,
    chunk: int = 64,
    vocab: int = 32_000,
) -> Made:
    def init() -> Any:
        layer = {
            "norm": (d,),
            "into": (d, 2 * inner),
            "taps": (4, inner),
            "rate": (rank, inner),
            "select": (inner, rank + 2 * state),
            "decay": (inner, state),
            "out": (inner, d),
        }
        return {
            "table": weights(w=(vocab, d))["w"],
            "layers": [weights(**layer) for _ in range(layers)],
            "final": weights(gain=(d,))["gain"],
        }

    def scan(x: Any, rate: Any, b: Any, c: Any, decay: Any) -> Any:
        """Outputs [batch, length, inner] of x and rates [batch, length, inner]."""

        @jax.checkpoint
        def step(h: Any, inputs: Any) -> tuple[Any, Any]:
            x, rate, b, c = inputs  # [batch, chunk, ...]
            kept = jnp.exp(rate[..., None] * decay)  # [batch, chunk, inner, state]
            added = (rate * x)[..., None] * b[:, :, None, :]

            def join(one: Any, two: Any) -> Any:
                return one[0] * two[0], two[0] * one[1] + two[1]

            through, found = jax.lax.associative_scan(join, (kept, added), axis=1)
            found = found + through * h[:, None]
            return found[:, -1], jnp.einsum("btis,bts->bti", found, c)

        def chunks(y: Any) -> Any:
            return y.reshape(batch, length // chunk, chunk, -1).swapaxes(0, 1)

        first = jnp.zeros((batch, inner, state), jnp.float32)
        _, found = jax.lax.scan(step, first, tuple(map(chunks, (x, rate, b, c))))
        return found.swapaxes(0, 1).reshape(batch, length, inner)

    def layer(p: Any, x: Any) -> Any:
        y, gate = jnp.split(dense(rms_norm(x, p["norm"]), p["into"]), 2, axis=-1)
        taps = p["taps"].astype(BF16)
        past = jnp.pad(y, ((0, 0), (3, 0), (0, 0)))
        y = jax.nn.silu(sum(past[:, i : i + length] * taps[i] for i in range(4)))
        chosen = dense(y, p["select"]).astype(jnp.float32)
        low, b, c = jnp.split(chosen, (rank, rank + state), axis=-1)
        rate = jax.nn.softplus(low @ p["rate"])
        z = scan(y.astype(jnp.float32), rate, b, c, -jnp.exp(p["decay"]))
        return x + dense(z.astype(BF16) * jax.nn.silu(gate), p["out"])

    def loss(params: Any, tokens: Any, labels: Any) -> Any:
        x = params["table"].astype(BF16)[tokens]
        for p in params["layers"]:
            x = layer(p, x)
        x = rms_norm(x, params["final"])
        return cross_entropy(x @ params["table"].astype(BF16).T, labels)

    return trained(loss, init, optax.adamw(1e-3), ids(batch, length), ids(batch, length))
