"""State-space language model of the Mamba-2 kind: products in chunks, a scan over their states."""

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
    length: int = 2048,
    d: int = 1024,
    heads: int = 32,
    state: int = 64,
    chunk: int = 128,
    layers: int = 2,
    vocab: int = 16_384,
) -> Made:
    inner = 2 * d
    width = inner // heads

    def init() -> Any:
        layer = {
            "norm": (d,),
            "inside": (d, 2 * inner + 2 * state + heads),
            "taps": (4, inner + 2 * state),
            "decay": (heads,),
            "skip": (heads,),
            "gain": (inner,),
            "out": (inner, d),
        }
        return {
            "table": weights(w=(vocab, d))["w"],
            "layers": [weights(**layer) for _ in range(layers)],
            "gain": jnp.zeros(d),
        }

    def scanned(x: Any, log_decay: Any, b: Any, c: Any) -> Any:
        """Outputs [batch, length, heads, width] of the recurrence over x.

        Args:
          x: [batch, length, heads, width].
          log_decay: [batch, length, heads].
          b / c: [batch, length, state].
        """
        n = length // chunk
        x, b, c = (y.reshape(batch, n, chunk, *y.shape[2:]) for y in (x, b, c))
        sums = jnp.cumsum(log_decay.reshape(batch, n, chunk, heads), axis=2)
        gaps = sums[:, :, :, None] - sums[:, :, None]  # [batch, n, to, from, heads]
        causal = jnp.tril(jnp.ones((chunk, chunk), dtype=bool))[:, :, None]
        decay = jnp.where(causal, jnp.exp(jnp.where(causal, gaps, 0.0)), 0.0).astype(BF16)
        scores = jnp.einsum("bnqs,bnks->bnqk", c, b)
        within = jnp.einsum("bnqk,bnqkh,bnkhw->bnqhw", scores, decay, x)
        left = jnp.exp(sums[:, :, -1:] - sums).astype(BF16)
        states = jnp.einsum("bnks,bnkh,bnkhw->nbhsw", b, left, x)
        whole = jnp.exp(sums[:, :, -1]).transpose(1, 0, 2)

        def carry(before: Any, each: Any) -> tuple[Any, Any]:
            made, factor = each
            return before * factor[..., None, None].astype(BF16) + made, before

        zeros = jnp.zeros((batch, heads, state, width), BF16)
        _, entering = jax.lax.scan(carry, zeros, (states, whole))
        across = jnp.einsum("bnqs,nbhsw,bnqh->bnqhw", c, entering, jnp.exp(sums).astype(BF16))
        return (within + across).reshape(batch, length, heads, width)

    def mix(p: Any, x: Any) -> Any:
        gate, xbc, dt = jnp.split(dense(x, p["inside"]), (inner, 2 * inner + 2 * state), axis=-1)
        padded = jnp.pad(xbc, ((0, 0), (3, 0), (0, 0)))
        taps = p["taps"].astype(BF16)
        xbc = jax.nn.silu(sum(padded[:, i : i + length] * taps[i] for i in range(4)))
        y, b, c = jnp.split(xbc, (inner, inner + state), axis=-1)
        y = y.reshape(batch, length, heads, width)
        dt = jax.nn.softplus(dt.astype(jnp.float32))
        z = scanned(y * dt[..., None].astype(BF16), -dt * jnp.exp(p["decay"]), b, c)
        z = (z + y * p["skip"].astype(BF16)[:, None]).reshape(batch, length, inner)
        return dense(rms_norm(z * jax.nn.silu(gate), p["gain"]), p["out"])

    def loss(params: Any, tokens: Any, labels: Any) -> Any:
        x = params["table"][tokens].astype(BF16)
        for p in params["layers"]:
            x = x + mix(p, rms_norm(x, p["norm"]))
        return cross_entropy(dense(rms_norm(x, params["gain"]), params["table"].T), labels)

    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
    return trained(loss, init, tx, ids(batch, length), ids(batch, length))
