"""A GShard-style mixture of experts: every second block routes tokens to two of many MLPs.

Lepikhin et al. 2020 (arXiv 2006.16668), algorithm 1: a sequence is a group; in it an expert takes
at most `capacity` tokens, others pass by on the residual. Dispatch and combine are one-hot einsums,
so that tiling the expert dim gives an all_to_all; the auxiliary loss keeps the experts balanced.
Or tokens are sorted by expert and multiplied in ragged groups; none is dropped (MegaBlocks, Gale et
al. 2022, arXiv 2211.15841).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.training.train_state import TrainState
from jax import lax

from models import training
from models.transformer import Attention, TransformerConfig


@dataclasses.dataclass(frozen=True)
class MoEConfig(TransformerConfig):
    """`TransformerConfig`, and of the mixture:

    Attributes:
      experts: MLPs of a mixture block.
      capacity_factor: places of all experts together, as a multiple of the tokens.
      balance: weight of the auxiliary loss.
      dispatch: "einsum", or "sort" (which knows no capacity).
    """

    experts: int = 4
    capacity_factor: float = 2.0
    balance: float = 0.01
    dispatch: Literal["einsum", "sort"] = "einsum"

    @property
    def capacity(self) -> int:
        """Tokens of one sequence that an expert takes."""
        return max(4, math.ceil(self.capacity_factor * self.seq / self.experts))


CONFIGS: Mapping[str, MoEConfig] = {
    "moe-tiny": MoEConfig(seq=16),
    "moe-sort-tiny": MoEConfig(seq=16, dispatch="sort"),
    "gshard-10b": MoEConfig(
        layers=12,
        d_model=1024,
        heads=16,
        d_ff=8192,
        vocab=32000,
        seq=1024,
        dtype=jnp.bfloat16,
        experts=128,
    ),
}


def balance_of(gates: jax.Array) -> jax.Array:
    """The loss that is least where the experts are chosen alike often."""
    experts = gates.shape[-1]
    first = jax.nn.one_hot(jnp.argmax(gates, -1), experts, dtype=gates.dtype)
    return (jnp.mean(first, 1) * jnp.mean(gates, 1)).sum(-1).mean() * experts


def by_sorting(x: jax.Array, gates: jax.Array, w_in: jax.Array, w_out: jax.Array) -> jax.Array:
    """Tokens [groups, seq, d_model], sorted by expert, through ragged products and back."""
    experts = gates.shape[-1]
    tokens = x.reshape(-1, x.shape[-1])
    weights, chosen = lax.top_k(gates.reshape(-1, experts), 2)
    weights = weights / (weights.sum(-1, keepdims=True) + 1e-9)
    order = jnp.argsort(chosen.reshape(-1))  # stable: two places per token
    sizes = jnp.bincount(chosen.reshape(-1), length=experts)
    hidden = jax.nn.gelu(lax.ragged_dot(tokens[order // 2], w_in, sizes))
    out = lax.ragged_dot(hidden, w_out, sizes)
    scaled = out * weights.reshape(-1)[order, None].astype(out.dtype)
    return jnp.zeros_like(tokens).at[order // 2].add(scaled).reshape(x.shape)


def top_two(gates: jax.Array, capacity: int) -> tuple[jax.Array, jax.Array]:
    """Places of tokens: combine weights [groups, seq, experts, capacity], and the balance loss.

    `gates` are probabilities [groups, seq, experts].
    """
    experts = gates.shape[-1]
    first = jax.nn.one_hot(jnp.argmax(gates, -1), experts, dtype=gates.dtype)
    second = jax.nn.one_hot(jnp.argmax(gates * (1 - first), -1), experts, dtype=gates.dtype)
    place1 = jnp.cumsum(first, 1) - first  # tokens before this one
    place2 = jnp.cumsum(second, 1) - second + first.sum(1, keepdims=True)
    weight1, weight2 = (gates * first).sum(-1), (gates * second).sum(-1)
    total = weight1 + weight2 + 1e-9

    def places(mask: jax.Array, place: jax.Array, weight: jax.Array) -> jax.Array:
        kept = mask * (place < capacity)
        slot = jax.nn.one_hot((place * kept).sum(-1).astype(jnp.int32), capacity)
        return jnp.einsum("gs,gse,gsc->gsec", weight / total, kept, slot)

    return places(first, place1, weight1) + places(second, place2, weight2), balance_of(gates)


class Mixture(nn.Module):
    """Routes each token to two of `experts` MLPs; [batch, seq, d_model], and the balance loss."""

    config: MoEConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        c = self.config
        logits = nn.Dense(c.experts, use_bias=False, name="router")(x.astype(jnp.float32))
        gates = jax.nn.softmax(logits)
        scale = nn.initializers.lecun_normal(batch_axis=(0,))
        w_in = self.param("w_in", scale, (c.experts, c.d_model, c.d_ff)).astype(c.dtype)
        w_out = self.param("w_out", scale, (c.experts, c.d_ff, c.d_model)).astype(c.dtype)
        if c.dispatch == "sort":
            return by_sorting(x, gates, w_in, w_out), balance_of(gates)
        combine, balance = top_two(gates, c.capacity)
        dispatch = (combine > 0).astype(c.dtype)
        inputs = jnp.einsum("gsec,gsd->egcd", dispatch, x)
        hidden = jax.nn.gelu(jnp.einsum("egcd,edf->egcf", inputs, w_in))
        outputs = jnp.einsum("egcf,efd->egcd", hidden, w_out)
        return jnp.einsum("gsec,egcd->gsd", combine.astype(c.dtype), outputs), balance


class MoETransformer(nn.Module):
    """Token ids [batch, seq] to logits [batch, seq, vocab], and the mean balance loss."""

    config: MoEConfig

    @nn.compact
    def __call__(self, tokens: jax.Array) -> tuple[jax.Array, jax.Array]:
        c = self.config
        embed = nn.Embed(c.vocab, c.d_model, dtype=c.dtype, name="embed")
        x, losses = embed(tokens), []
        for i in range(c.layers):
            y = nn.LayerNorm(dtype=c.dtype, name=f"norm1_{i}")(x)
            x = x + Attention(c, name=f"attention_{i}")(y)
            y = nn.LayerNorm(dtype=c.dtype, name=f"norm2_{i}")(x)
            if i % 2:
                y, balance = Mixture(c, name=f"mixture_{i}")(y)
                losses.append(balance)
            else:
                y = jax.nn.gelu(nn.Dense(c.d_ff, dtype=c.dtype, name=f"mlp_in_{i}")(y))
                y = nn.Dense(c.d_model, dtype=c.dtype, name=f"mlp_out_{i}")(y)
            x = x + y
        x = nn.LayerNorm(dtype=c.dtype, name="norm")(x)
        return embed.attend(x), jnp.mean(jnp.stack(losses))


def init_state(config: MoEConfig, tx: optax.GradientTransformation, seed: int = 0) -> TrainState:
    """A fresh train state on the default device."""
    tokens = jnp.zeros((1, config.seq), jnp.int32)
    return training.create_state(MoETransformer(config), tx, seed, tokens)


sample_batch = training.sample_tokens


def make_train_step(config: MoEConfig) -> training.Step:
    """The train step `(state, tokens) -> (state, loss)`."""

    def loss(params: Any, tokens: Any) -> jax.Array:
        logits, balance = MoETransformer(config).apply({"params": params}, tokens[:, :-1])
        losses = optax.softmax_cross_entropy_with_integer_labels(
            logits.astype(jnp.float32), tokens[:, 1:]
        )
        return losses.mean() + config.balance * balance

    return training.make_step(loss)
