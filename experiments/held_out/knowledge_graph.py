"""Embeddings of a knowledge graph: encoded queries told from drawn entities (negative samples)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from experiments.held_out.training import BF16, Made, dense, ids, layer_norm, trained, weights


def make(
    batch: int = 32768,
    entities: int = 65536,
    relations: int = 512,
    d: int = 256,
    drawn: int = 64,
    layers: int = 2,
) -> Made:
    def init() -> Any:
        layer = {"up": (d, 4 * d), "down": (4 * d, d), "gain": (d,), "bias": (d,)}
        tables = {"entity": (entities, d), "relation": (relations, d), "both": (2 * d, d)}
        return {"layers": [weights(**layer) for _ in range(layers)], **weights(**tables)}

    def loss(p: Any, head: Any, relation: Any, tail: Any, others: Any) -> Any:
        """Loss of triples of [batch] ids, and entities [batch, drawn] that are no tails."""
        known = jnp.concatenate([p["entity"][head], p["relation"][relation]], axis=-1)
        x = dense(known.astype(BF16), p["both"])
        for layer in p["layers"]:
            y = layer_norm(x, layer["gain"], layer["bias"])
            x = x + dense(jax.nn.gelu(dense(y, layer["up"])), layer["down"])
        table = p["entity"].astype(BF16)
        right = jnp.einsum("bd,bd->b", x, table[tail]).astype(jnp.float32)
        wrong = jnp.einsum("bd,bnd->bn", x, table[others]).astype(jnp.float32)
        share = jax.lax.stop_gradient(jax.nn.softmax(wrong))
        lost = jax.nn.softplus(-right) + (share * jax.nn.softplus(wrong)).sum(axis=-1)
        return lost.mean()

    one = ids(batch)
    return trained(loss, init, optax.adam(1e-3), one, one, one, ids(batch, drawn))
