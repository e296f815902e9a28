"""LLaMA 2 and 3: grouped-query attention, rotary positions, SwiGLU, RMSNorm, untied head.

Sizes: Touvron et al. 2023 (arXiv 2307.09288, table 1) and Llama Team 2024 (arXiv 2407.21783,
table 3). Parameters are float32 with bfloat16 products, as in mixed-precision training.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.training.train_state import TrainState

from models import training
from models.transformer import rotary


@dataclasses.dataclass(frozen=True)
class LlamaConfig:
    """Sizes of `Llama`; `heads` must be a multiple of `kv_heads`."""

    layers: int
    d_model: int
    heads: int
    kv_heads: int
    d_ff: int
    vocab: int
    seq: int = 4096
    remat: bool = False
    dtype: Any = jnp.bfloat16

    def __post_init__(self) -> None:
        if self.d_model % self.heads or self.heads % self.kv_heads:
            raise ValueError(
                f"d_model={self.d_model} must split into heads={self.heads}, and these into"
                f" kv_heads={self.kv_heads}"
            )


CONFIGS: Mapping[str, LlamaConfig] = {
    "llama2-7b": LlamaConfig(32, 4096, 32, 32, 11008, 32000),
    "llama2-13b": LlamaConfig(40, 5120, 40, 40, 13824, 32000),
    "llama2-70b": LlamaConfig(80, 8192, 64, 8, 28672, 32000),
    "llama3-8b": LlamaConfig(32, 4096, 32, 8, 14336, 128256, 8192),
    "llama3-70b": LlamaConfig(80, 8192, 64, 8, 28672, 128256, 8192),
    "llama3-405b": LlamaConfig(126, 16384, 128, 8, 53248, 128256, 8192),
}


class Attention(nn.Module):
    """Causal grouped-query attention; [batch, seq, d_model] to the same."""

    config: LlamaConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        c = self.config
        width, groups = c.d_model // c.heads, c.heads // c.kv_heads

        def project(heads: int, name: str) -> jax.Array:
            return nn.DenseGeneral((heads, width), use_bias=False, dtype=c.dtype, name=name)(x)

        query = rotary(project(c.heads, "query"))
        key, value = rotary(project(c.kv_heads, "key")), project(c.kv_heads, "value")
        query = query.reshape(*query.shape[:2], c.kv_heads, groups, width)
        scores = jnp.einsum("bqhgd,bkhd->bhgqk", query, key) / width**0.5
        mask = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))
        scores = jnp.where(mask, scores.astype(jnp.float32), -1e9)
        weights = jax.nn.softmax(scores, axis=-1).astype(c.dtype)
        mixed = jnp.einsum("bhgqk,bkhd->bqhgd", weights, value)
        mixed = mixed.reshape(*mixed.shape[:2], c.heads, width)
        return nn.DenseGeneral(c.d_model, axis=(-2, -1), use_bias=False, dtype=c.dtype, name="out")(
            mixed
        )


class Block(nn.Module):
    """One pre-norm block with a gated MLP."""

    config: LlamaConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        c = self.config

        def dense(features: int, name: str) -> Callable[[jax.Array], jax.Array]:
            return nn.Dense(features, use_bias=False, dtype=c.dtype, name=name)

        x = x + Attention(c, name="attention")(nn.RMSNorm(dtype=c.dtype, name="norm1")(x))
        y = nn.RMSNorm(dtype=c.dtype, name="norm2")(x)
        y = nn.silu(dense(c.d_ff, "gate")(y)) * dense(c.d_ff, "up")(y)
        return x + dense(c.d_model, "down")(y)


class Llama(nn.Module):
    """Token ids [batch, seq] to logits [batch, seq, vocab]."""

    config: LlamaConfig

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        c = self.config
        x = nn.Embed(c.vocab, c.d_model, dtype=c.dtype, name="embed")(tokens)
        block: Any = nn.remat(Block) if c.remat else Block
        for i in range(c.layers):
            x = block(c, name=f"layer_{i}")(x)
        x = nn.RMSNorm(dtype=c.dtype, name="norm")(x)
        return nn.Dense(c.vocab, use_bias=False, dtype=c.dtype, name="head")(x)


def optimizer() -> optax.GradientTransformation:
    """AdamW with the published betas and weight decay, clipped by global norm."""
    adamw = optax.adamw(3e-4, b1=0.9, b2=0.95, weight_decay=0.1)
    return optax.chain(optax.clip_by_global_norm(1.0), adamw)


def init_state(config: LlamaConfig, tx: optax.GradientTransformation, seed: int = 0) -> TrainState:
    """A fresh train state on the default device."""
    tokens = jnp.zeros((1, config.seq), jnp.int32)
    return training.create_state(Llama(config), tx, seed, tokens)


def make_train_step(
    config: LlamaConfig,
) -> Callable[[TrainState, jax.Array], tuple[TrainState, jax.Array]]:
    """The train step `(state, tokens) -> (state, loss)`; tokens are [batch, seq + 1]."""

    def train_step(state: TrainState, tokens: jax.Array) -> tuple[TrainState, jax.Array]:
        def loss_of(params: Any) -> jax.Array:
            logits = Llama(config).apply({"params": params}, tokens[:, :-1])
            losses = optax.softmax_cross_entropy_with_integer_labels(
                logits.astype(jnp.float32), tokens[:, 1:]
            )
            return losses.mean()

        loss, grads = jax.value_and_grad(loss_of)(state.params)
        return state.apply_gradients(grads=grads), loss

    return train_step


def example_args(
    config: LlamaConfig, tx: optax.GradientTransformation, batch: int
) -> tuple[Any, jax.ShapeDtypeStruct]:
    """Abstract `(state, tokens)` of the train step: shapes without memory."""
    state = jax.eval_shape(lambda: init_state(config, tx))
    return state, jax.ShapeDtypeStruct((batch, config.seq + 1), jnp.int32)
