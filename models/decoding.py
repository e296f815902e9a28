"""Inference with a key-value cache: the prompt at once, then token by token in a scan.

The mould is IT32 of PartIR (arXiv 2401.11202, section 7): 32 layers, 1,536 steps of decoding, and
queries of many heads on keys and values of all or of one (multi-query, Shazeer 2019, arXiv
1911.02150).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jax import lax


@dataclasses.dataclass(frozen=True)
class DecodingConfig:
    """Sizes of `Decoder`, and how it is sampled.

    Attributes:
      kv_heads: heads of keys and values; 1 is multi-query attention.
      prompt / steps: tokens that are given, and that are made after them.
      top_k: draws from the most likely ones; 0: always the most likely one.
    """

    layers: int = 2
    d_model: int = 32
    heads: int = 4
    kv_heads: int = 4
    d_ff: int = 64
    vocab: int = 64
    prompt: int = 4
    steps: int = 4
    top_k: int = 0
    dtype: Any = jnp.float32

    @property
    def cached(self) -> int:
        """Places in the cache."""
        return self.prompt + self.steps


CONFIGS: Mapping[str, DecodingConfig] = {
    "decoding-tiny": DecodingConfig(),
    "decoding-multiquery-tiny": DecodingConfig(kv_heads=1, top_k=4),
    "it32": DecodingConfig(32, 4096, 32, 32, 16384, 32000, 512, 1536, dtype=jnp.bfloat16),
    "it32-multiquery": DecodingConfig(
        32, 4096, 32, 1, 16384, 32000, 512, 1536, top_k=40, dtype=jnp.bfloat16
    ),
}

Cache = tuple[jax.Array, jax.Array]  # keys and values, both [batch, places, kv_heads, width]


class Prompt(NamedTuple):
    """Token ids [batch, prompt], and the key that sampling draws from."""

    tokens: jax.Array
    key: jax.Array


class Block(nn.Module):
    """One pre-norm block on tokens at places `at`, `at` + 1, ..., and its cache."""

    config: DecodingConfig

    @nn.compact
    def __call__(self, x: jax.Array, cache: Cache, at: Any) -> tuple[jax.Array, Cache]:
        c = self.config
        width = c.d_model // c.heads
        y = nn.RMSNorm(dtype=c.dtype, name="norm1")(x)

        def project(heads: int, name: str) -> jax.Array:
            layer = nn.DenseGeneral((heads, width), use_bias=False, dtype=c.dtype, name=name)
            return layer(y)

        query = project(c.heads, "query")
        query = query.reshape(*query.shape[:2], c.kv_heads, c.heads // c.kv_heads, width)
        fresh = project(c.kv_heads, "key"), project(c.kv_heads, "value")
        keys, values = (
            lax.dynamic_update_slice_in_dim(old, new.astype(old.dtype), at, 1)
            for old, new in zip(cache, fresh, strict=True)
        )
        scores = jnp.einsum("bqhgd,bkhd->bhgqk", query, keys) / width**0.5
        places = at + jnp.arange(x.shape[1])
        seen = jnp.arange(c.cached)[None, :] <= places[:, None]
        scores = jnp.where(seen, scores.astype(jnp.float32), -1e9)
        weights = jax.nn.softmax(scores, axis=-1).astype(c.dtype)
        mixed = jnp.einsum("bhgqk,bkhd->bqhgd", weights, values)
        mixed = mixed.reshape(*mixed.shape[:2], c.heads, width)
        out = nn.DenseGeneral(c.d_model, axis=(-2, -1), use_bias=False, dtype=c.dtype, name="out")
        x = x + out(mixed)
        y = nn.RMSNorm(dtype=c.dtype, name="norm2")(x)
        y = jax.nn.gelu(nn.Dense(c.d_ff, use_bias=False, dtype=c.dtype, name="mlp_in")(y))
        x = x + nn.Dense(c.d_model, use_bias=False, dtype=c.dtype, name="mlp_out")(y)
        return x, (keys, values)


class Decoder(nn.Module):
    """Token ids [batch, n] at places `at`... to logits of the last one [batch, vocab]."""

    config: DecodingConfig

    @nn.compact
    def __call__(
        self, tokens: jax.Array, caches: list[Cache], at: Any
    ) -> tuple[jax.Array, list[Cache]]:
        c = self.config
        embed = nn.Embed(c.vocab, c.d_model, dtype=c.dtype, name="embed")
        x, new = embed(tokens), []
        for i in range(c.layers):
            x, cache = Block(c, name=f"layer_{i}")(x, caches[i], at)
            new.append(cache)
        x = nn.RMSNorm(dtype=c.dtype, name="norm")(x[:, -1])
        return embed.attend(x).astype(jnp.float32), new


def empty_caches(config: DecodingConfig, batch: int) -> list[Cache]:
    """Caches of all layers, without a token."""
    width = config.d_model // config.heads
    zeros = jnp.zeros((batch, config.cached, config.kv_heads, width), config.dtype)
    return [(zeros, zeros)] * config.layers


def init_state(config: DecodingConfig, tx: optax.GradientTransformation, seed: int = 0) -> Any:
    """Parameters; `tx` is not needed."""
    tokens = jnp.zeros((1, config.prompt), jnp.int32)
    model = Decoder(config)
    return model.init(jax.random.key(seed), tokens, empty_caches(config, 1), 0)["params"]


def sample_batch(config: DecodingConfig, batch: int, seed: int = 0) -> Prompt:
    """Random prompts."""
    key, draw = jax.random.split(jax.random.key(seed))
    return Prompt(jax.random.randint(key, (batch, config.prompt), 0, config.vocab), draw)


def make_train_step(config: DecodingConfig) -> Callable[[Any, Prompt], jax.Array]:
    """The step `(params, prompt) -> tokens` [batch, steps]: not of training, for once."""
    model = Decoder(config)

    def choose(logits: jax.Array, key: jax.Array) -> jax.Array:
        if not config.top_k:
            return jnp.argmax(logits, -1)
        best, ids = lax.top_k(logits, config.top_k)
        drawn = jax.random.categorical(key, best)
        return jnp.take_along_axis(ids, drawn[:, None], -1)[:, 0]

    def generate(params: Any, prompt: Prompt) -> jax.Array:
        variables = {"params": params}
        caches = empty_caches(config, prompt.tokens.shape[0])
        logits, caches = model.apply(variables, prompt.tokens, caches, 0)
        token = choose(logits, prompt.key)

        def step(carry: Any, i: jax.Array) -> tuple[Any, jax.Array]:
            token, caches = carry
            logits, caches = model.apply(variables, token[:, None], caches, config.prompt + i)
            following = choose(logits, jax.random.fold_in(prompt.key, i))
            return (following, caches), token

        _, tokens = lax.scan(step, (token, caches), jnp.arange(config.steps))
        return tokens.T

    return generate
