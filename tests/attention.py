"""Attention as people write it, for tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from tests.support import floats_of

Attention = Callable[..., Any]


def by_hand(q: Any, k: Any, v: Any) -> Any:
    """Without jax.nn, masked by products, accumulated by hand."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5
    scores = jnp.where(jnp.tril(jnp.ones((q.shape[1],) * 2, bool)), scores, -1e30)
    weights = jnp.exp(scores - jax.lax.stop_gradient(scores.max(-1, keepdims=True)))
    weights = weights / weights.sum(-1, keepdims=True)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v)


def in_flax(q: Any, k: Any, v: Any) -> Any:
    return nn.dot_product_attention(q, k, v, mask=nn.make_causal_mask(jnp.ones(q.shape[:2])))


def grouped(q: Any, k: Any, v: Any) -> Any:
    """Two queries for each key (Ainslie et al. 2023)."""
    return jax.nn.dot_product_attention(q, k[:, :, ::2], v[:, :, ::2], is_causal=True)


def alibi(q: Any, k: Any, v: Any) -> Any:
    """With a slope for each head (Press et al. 2021)."""
    n, h = q.shape[1:3]
    apart = jnp.arange(n)[None, :] - jnp.arange(n)[:, None]
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k)
    scores = scores + apart * 2.0 ** -jnp.arange(1.0, h + 1)[:, None, None]
    weights = jax.nn.softmax(jnp.where(apart <= 0, scores, jnp.finfo(jnp.float32).min))
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v)


def full(q: Any, k: Any, v: Any) -> Any:
    return jax.nn.dot_product_attention(q, k, v)


def padded(q: Any, k: Any, v: Any) -> Any:
    """Keys that data says are not there."""
    there = jnp.linalg.norm(v, axis=(2, 3)) > 2.0
    return nn.dot_product_attention(q, k, v, mask=there[:, None, None])


def capped(q: Any, k: Any, v: Any) -> Any:
    """Scores that do not grow beyond a number (Gemma 2)."""
    scores = 5 * jnp.tanh(jnp.einsum("bqhd,bkhd->bhqk", q, k) / 5)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)


def dropped(q: Any, k: Any, v: Any) -> Any:
    """Some of the weights, by chance."""
    key = jax.random.key(0)
    return nn.dot_product_attention(
        q, k, v, dropout_rng=key, dropout_rate=0.25, broadcast_dropout=False, deterministic=False
    )


FORMS: dict[str, Attention] = {
    "hand": by_hand,
    "flax": in_flax,
    "jax, grouped": grouped,
    "alibi": alibi,
    "full": full,
    "full, padded": padded,
    "full, capped": capped,
    "full, dropped": dropped,
}


def heads(batch: int, seq: int) -> list[jax.Array]:
    """Queries, keys and values of 4 heads of 4 features."""
    return floats_of(*[(batch, seq, 4, 4)] * 3)


def gradients(attention: Attention) -> Attention:
    """The result and the gradients of all three."""

    def run(q: Any, k: Any, v: Any) -> Any:
        def loss(*args: Any) -> Any:
            out = attention(*args)
            return jnp.sum(jnp.sin(out)), out

        return jax.grad(loss, (0, 1, 2), has_aux=True)(q, k, v)

    return run
