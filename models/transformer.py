"""A decoder-only transformer language model and its train step, written for one device.

With the default `TransformerConfig` a layer has 4 matrices (fused qkv, attention output, two MLP
matrices) and 5 vectors (two LayerNorms with bias, one MLP bias), the embedding is tied to the head
and positions are rotary, so that the model has ``9 * layers + 1`` parameter tensors: the mould of
the T32 model of PartIR (arXiv 2401.11202).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.training.train_state import TrainState

from models import training


@dataclasses.dataclass(frozen=True)
class TransformerConfig:
    """Sizes and options of `Transformer`.

    Attributes:
      layers: number of blocks.
      d_model: width of the residual stream.
      heads: attention heads; `d_model // heads` must be even (rotary positions).
      d_ff: width of the MLP.
      vocab: number of token ids.
      seq: tokens per example that the model sees (batches hold one more, for the targets).
      dropout: rate; 0 draws no random numbers.
      scan: fold the blocks into one `nn.scan`.
      remat: recompute each block in the backward pass.
      dtype: type of the matrix products; parameters are float32.
    """

    layers: int = 2
    d_model: int = 64
    heads: int = 4
    d_ff: int = 256
    vocab: int = 256
    seq: int = 64
    dropout: float = 0.0
    scan: bool = False
    remat: bool = False
    dtype: Any = jnp.float32

    def __post_init__(self) -> None:
        if self.d_model % self.heads or (self.d_model // self.heads) % 2:
            raise ValueError(
                f"d_model={self.d_model} must split into heads={self.heads} of even width"
            )


def rotary(x: jax.Array) -> jax.Array:
    """Rotary positions (Su et al. 2021) on `x` of shape [batch, seq, heads, width]."""
    seq, width = x.shape[1], x.shape[3]
    frequency = 10_000.0 ** (-jnp.arange(0, width, 2, dtype=jnp.float32) / width)
    angle = jnp.arange(seq, dtype=jnp.float32)[:, None] * frequency[None, :]
    cos = jnp.cos(angle)[None, :, None, :].astype(x.dtype)
    sin = jnp.sin(angle)[None, :, None, :].astype(x.dtype)
    even, odd = x[..., : width // 2], x[..., width // 2 :]
    return jnp.concatenate([even * cos - odd * sin, odd * cos + even * sin], axis=-1)


class Attention(nn.Module):
    """Causal multi-head self-attention; [batch, seq, d_model] to the same."""

    config: TransformerConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        c = self.config
        width = c.d_model // c.heads
        qkv = nn.DenseGeneral((3, c.heads, width), use_bias=False, dtype=c.dtype, name="qkv")(x)
        query, key, value = (jnp.squeeze(part, 2) for part in jnp.split(qkv, 3, axis=2))
        scores = jnp.einsum("bqhd,bkhd->bhqk", rotary(query), rotary(key)) / width**0.5
        mask = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))
        scores = jnp.where(mask, scores.astype(jnp.float32), -1e9)
        weights = jax.nn.softmax(scores, axis=-1).astype(c.dtype)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, value)
        return nn.DenseGeneral(c.d_model, axis=(-2, -1), use_bias=False, dtype=c.dtype, name="out")(
            mixed
        )


class Block(nn.Module):
    """One pre-norm transformer block. Has the (carry, _) form of `nn.scan`."""

    config: TransformerConfig
    deterministic: bool = True

    @nn.compact
    def __call__(self, x: jax.Array, _: None = None) -> tuple[jax.Array, None]:
        c = self.config
        drop = nn.Dropout(c.dropout, deterministic=self.deterministic)
        y = Attention(c, name="attention")(nn.LayerNorm(dtype=c.dtype, name="norm1")(x))
        x = x + drop(y)
        y = nn.LayerNorm(dtype=c.dtype, name="norm2")(x)
        y = jax.nn.gelu(nn.Dense(c.d_ff, dtype=c.dtype, name="mlp_in")(y))
        y = nn.Dense(c.d_model, use_bias=False, dtype=c.dtype, name="mlp_out")(y)
        return x + drop(y), None


class Transformer(nn.Module):
    """Token ids [batch, seq] to logits [batch, seq, vocab]."""

    config: TransformerConfig
    deterministic: bool = True

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        c = self.config
        embed = nn.Embed(c.vocab, c.d_model, dtype=c.dtype, name="embed")
        x = embed(tokens)
        block: Any = Block
        if c.remat:
            block = nn.remat(Block, prevent_cse=not c.scan)
        if c.scan:
            stack = nn.scan(
                block,
                variable_axes={"params": 0},
                split_rngs={"params": True, "dropout": True},
                length=c.layers,
            )
            x, _ = stack(c, self.deterministic, name="layers")(x, None)
        else:
            for i in range(c.layers):
                x, _ = block(c, self.deterministic, name=f"layer_{i}")(x, None)
        return embed.attend(x)


def optimizer(
    learning_rate: float = 1e-3, steps: int = 100, clip: float | None = 1.0
) -> optax.GradientTransformation:
    """AdamW with warm-up and cosine decay; clips by global norm unless `clip` is None."""
    schedule = optax.warmup_cosine_decay_schedule(
        0.0, learning_rate, max(1, steps // 10), max(2, steps)
    )
    adamw = optax.adamw(schedule, weight_decay=0.01)
    return adamw if clip is None else optax.chain(optax.clip_by_global_norm(clip), adamw)


def init_state(
    config: TransformerConfig, tx: optax.GradientTransformation, seed: int = 0
) -> TrainState:
    """A fresh train state on the default device."""
    tokens = jnp.zeros((1, config.seq), jnp.int32)
    return training.create_state(Transformer(config), tx, seed, tokens)


def loss_fn(config: TransformerConfig, params: Any, tokens: jax.Array, key: jax.Array) -> jax.Array:
    """Mean next-token cross-entropy of `tokens` [batch, seq + 1]."""
    model = Transformer(config, deterministic=config.dropout == 0.0)
    logits = model.apply({"params": params}, tokens[:, :-1], rngs={"dropout": key})
    losses = optax.softmax_cross_entropy_with_integer_labels(
        logits.astype(jnp.float32), tokens[:, 1:]
    )
    return losses.mean()


def make_train_step(
    config: TransformerConfig,
) -> Callable[[TrainState, jax.Array, jax.Array], tuple[TrainState, jax.Array]]:
    """The train step `(state, tokens, key) -> (state, loss)` for one device."""

    def train_step(
        state: TrainState, tokens: jax.Array, key: jax.Array
    ) -> tuple[TrainState, jax.Array]:
        def loss_of(params: Any) -> jax.Array:
            return loss_fn(config, params, tokens, jax.random.fold_in(key, state.step))

        loss, grads = jax.value_and_grad(loss_of)(state.params)
        return state.apply_gradients(grads=grads), loss

    return train_step


def example_args(
    config: TransformerConfig, tx: optax.GradientTransformation, batch: int
) -> tuple[Any, jax.ShapeDtypeStruct, Any]:
    """Abstract `(state, tokens, key)` of the train step: shapes without memory."""
    state = jax.eval_shape(lambda: init_state(config, tx))
    key = jax.eval_shape(lambda: jax.random.key(0))
    return state, jax.ShapeDtypeStruct((batch, config.seq + 1), jnp.int32), key
