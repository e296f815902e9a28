"""T5 1.1: an encoder-decoder with relative position biases and cross-attention.

Raffel et al. 2020 (arXiv 1910.10683), sizes of its section 3.7; blocks of the 1.1 release (gated
GELU, RMSNorm, untied head, no biases). One bias table per stack, shared by its layers.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.training.train_state import TrainState

from models import training


@dataclasses.dataclass(frozen=True)
class T5Config:
    """Sizes of `T5`; both stacks have `layers` blocks and see `seq` tokens."""

    layers: int = 1
    d_model: int = 32
    heads: int = 4
    head_width: int = 8
    d_ff: int = 64
    vocab: int = 128
    seq: int = 16
    buckets: int = 32
    max_distance: int = 128
    dtype: Any = jnp.float32


CONFIGS: Mapping[str, T5Config] = {
    "t5-tiny": T5Config(),
    "t5-large": T5Config(24, 1024, 16, 64, 2816, 32128, 512, dtype=jnp.bfloat16),
    "t5-3b": T5Config(24, 2048, 32, 64, 5120, 32128, 512, dtype=jnp.bfloat16),
    "t5-11b": T5Config(24, 4096, 64, 64, 10240, 32128, 512, dtype=jnp.bfloat16),
}


def buckets_of(seq: int, buckets: int, max_distance: int, causal: bool) -> np.ndarray[Any, Any]:
    """Bucket of the distance between each query and key, [seq, seq]; constant in training."""
    distance = np.arange(seq)[None, :] - np.arange(seq)[:, None]
    base = np.zeros_like(distance)
    if causal:
        distance = np.maximum(-distance, 0)
    else:
        buckets //= 2
        base = (distance > 0) * buckets
        distance = np.abs(distance)
    exact = buckets // 2
    far = np.log(np.maximum(distance, 1) / exact) / math.log(max_distance / exact)
    large = np.minimum(exact + (far * (buckets - exact)).astype(int), buckets - 1)
    return base + np.where(distance < exact, distance, large)


class Attention(nn.Module):
    """Attention of `x` to `memory`, without scaling, plus a bias on the scores."""

    config: T5Config

    @nn.compact
    def __call__(self, x: jax.Array, memory: jax.Array, bias: jax.Array | None) -> jax.Array:
        c = self.config

        def project(y: jax.Array, name: str) -> jax.Array:
            heads = (c.heads, c.head_width)
            return nn.DenseGeneral(heads, use_bias=False, dtype=c.dtype, name=name)(y)

        query, key, value = project(x, "query"), project(memory, "key"), project(memory, "value")
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key).astype(jnp.float32)
        weights = jax.nn.softmax(scores if bias is None else scores + bias).astype(c.dtype)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, value)
        return nn.DenseGeneral(c.d_model, axis=(-2, -1), use_bias=False, dtype=c.dtype, name="out")(
            mixed
        )


class GatedMLP(nn.Module):
    """GELU-gated MLP."""

    config: T5Config

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        c = self.config

        def dense(features: int, name: str) -> nn.Module:
            return nn.Dense(features, use_bias=False, dtype=c.dtype, name=name)

        return dense(c.d_model, "out")(
            jax.nn.gelu(dense(c.d_ff, "gate")(x)) * dense(c.d_ff, "in")(x)
        )


class Stack(nn.Module):
    """Encoder, or with `memory` a causal decoder that attends to it."""

    config: T5Config

    @nn.compact
    def __call__(self, x: jax.Array, memory: jax.Array | None = None) -> jax.Array:
        c, seq = self.config, x.shape[1]
        causal = memory is not None
        table = self.param("bias", nn.initializers.normal(1.0), (c.buckets, c.heads))
        bias = jnp.take(table, buckets_of(seq, c.buckets, c.max_distance, causal), axis=0)
        bias = jnp.transpose(bias, (2, 0, 1))[None]
        if causal:
            bias = jnp.where(jnp.tril(jnp.ones((seq, seq), bool)), bias, -1e9)

        def norm(name: str) -> nn.Module:
            return nn.RMSNorm(dtype=c.dtype, name=name)

        for i in range(c.layers):
            y = norm(f"norm1_{i}")(x)
            x = x + Attention(c, name=f"attention_{i}")(y, y, bias)
            if memory is not None:
                y = norm(f"norm2_{i}")(x)
                x = x + Attention(c, name=f"cross_{i}")(y, memory, None)
            x = x + GatedMLP(c, name=f"mlp_{i}")(norm(f"norm3_{i}")(x))
        return norm("norm")(x)


class T5(nn.Module):
    """Source ids and decoder-input ids, both [batch, seq], to logits [batch, seq, vocab]."""

    config: T5Config

    @nn.compact
    def __call__(self, source: jax.Array, target: jax.Array) -> jax.Array:
        c = self.config
        embed = nn.Embed(c.vocab, c.d_model, dtype=c.dtype, name="embed")
        memory = Stack(c, name="encoder")(embed(source))
        x = Stack(c, name="decoder")(embed(target), memory)
        return nn.Dense(c.vocab, use_bias=False, dtype=c.dtype, name="head")(x)


def init_state(config: T5Config, tx: optax.GradientTransformation, seed: int = 0) -> TrainState:
    """A fresh train state on the default device."""
    tokens = jnp.zeros((1, config.seq), jnp.int32)
    return training.create_state(T5(config), tx, seed, tokens, tokens)


def sample_batch(config: T5Config, batch: int, seed: int = 0) -> dict[str, jax.Array]:
    """Source ids [batch, seq] and target ids [batch, seq + 1], the first of which starts."""
    keys = jax.random.split(jax.random.key(seed))
    return {
        "source": jax.random.randint(keys[0], (batch, config.seq), 0, config.vocab),
        "target": jax.random.randint(keys[1], (batch, config.seq + 1), 0, config.vocab),
    }


def make_train_step(config: T5Config) -> training.Step:
    """The train step `(state, batch) -> (state, loss)`."""

    def loss(params: Any, batch: Any) -> jax.Array:
        target = batch["target"]
        logits = T5(config).apply({"params": params}, batch["source"], target[:, :-1])
        losses = optax.softmax_cross_entropy_with_integer_labels(
            logits.astype(jnp.float32), target[:, 1:]
        )
        return losses.mean()

    return training.make_step(loss)
