"""Language model with top-2 experts of limited capacity, filled by scatter and read by gather."""

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
    batch: int = 32,
    length: int = 1024,
    d: int = 1024,
    heads: int = 8,
    experts: int = 16,
    ff: int = 2048,
    layers: int = 2,
    vocab: int = 32_000,
    factor: float = 1.25,
) -> Made:
    width, count = d // heads, batch * length
    capacity = int(factor * 2 * count / experts)

    def init() -> Any:
        layer = {
            "norm": (d,),
            "norm_f": (d,),
            "qkv": (d, 3 * d),
            "out": (d, d),
            "router": (d, experts),
            "up": (experts, d, ff),
            "down": (experts, ff, d),
        }
        return {
            "table": weights(w=(vocab, d))["w"],
            "layers": [weights(**layer) for _ in range(layers)],
            "gain": jnp.zeros(d),
        }

    def attend(p: Any, x: Any) -> Any:
        q, k, v = (
            y.reshape(batch, length, heads, width)
            for y in jnp.split(dense(x, p["qkv"]), 3, axis=-1)
        )
        scores = jnp.einsum("bqhk,bshk->bhqs", q, k).astype(jnp.float32) * width**-0.5
        scores = jnp.where(jnp.tril(jnp.ones((length, length), dtype=bool)), scores, -1e30)
        mixed = jnp.einsum("bhqs,bshk->bqhk", jax.nn.softmax(scores).astype(BF16), v)
        return dense(mixed.reshape(x.shape), p["out"])

    def route(p: Any, x: Any) -> tuple[Any, Any]:
        """Outputs of the experts for tokens x [count, d], and the loss that balances them."""
        odds = jax.nn.softmax(dense(x, p["router"]).astype(jnp.float32))
        share, chosen = jax.lax.top_k(odds, 2)
        share = share / share.sum(axis=-1, keepdims=True)
        flat = chosen.T.reshape(-1)  # first choices before second ones
        mine = jax.nn.one_hot(flat, experts, dtype=jnp.int32)
        place = jnp.sum((jnp.cumsum(mine, axis=0) - mine) * mine, axis=-1)
        kept = place < capacity
        place = jnp.where(kept, place, capacity - 1)
        sent = jnp.concatenate((x, x)) * kept[:, None].astype(BF16)
        held = jnp.zeros((experts, capacity, d), BF16).at[flat, place].add(sent)
        h = jax.nn.gelu(jnp.einsum("ecd,edf->ecf", held, p["up"].astype(BF16)))
        made = jnp.einsum("ecf,efd->ecd", h, p["down"].astype(BF16))
        back = made[flat, place] * (kept * share.T.reshape(-1)).astype(BF16)[:, None]
        balance = experts * jnp.sum(mine[:count].mean(axis=0) * odds.mean(axis=0))
        return back[:count] + back[count:], balance

    def loss(params: Any, tokens: Any, labels: Any) -> Any:
        x, balance = params["table"][tokens].astype(BF16), 0.0
        for p in params["layers"]:
            x = x + attend(p, rms_norm(x, p["norm"]))
            y, more = route(p, rms_norm(x, p["norm_f"]).reshape(count, d))
            x, balance = x + y.reshape(x.shape), balance + more
        logits = dense(rms_norm(x, params["gain"]), params["table"].T)
        return cross_entropy(logits, labels) + 0.01 * balance

    return trained(loss, init, optax.adamw(1e-3), ids(batch, length), ids(batch, length))
