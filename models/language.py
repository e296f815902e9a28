"""Transformer language models in the shapes of GPT-2/3, BERT, OPT and BLOOM.

One module with what sets the families apart: where the norms stand, positions (learned, or ALiBi),
the activation, and whether attention looks back only. Sizes: Radford et al. 2019 (GPT-2), Brown et
al. 2020 (arXiv 2005.14165, table 2.1), Devlin et al. 2018 (arXiv 1810.04805), Zhang et al. 2022
(arXiv 2205.01068, table 1), BigScience 2022 (arXiv 2211.05100, table 3).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.training.train_state import TrainState
from jax.ad_checkpoint import checkpoint_name

from models import float8, training

REMAT_POLICIES: Mapping[str, Any] = {
    "full": None,
    "dots": jax.checkpoint_policies.checkpoint_dots,
    "dots_without_batch": jax.checkpoint_policies.checkpoint_dots_with_no_batch_dims,
    "named": jax.checkpoint_policies.save_only_these_names("attention"),
}


@dataclasses.dataclass(frozen=True)
class LanguageConfig:
    """Sizes and options of `Language`; the MLP is four times as wide as the model.

    Attributes:
      positions: "learned" or "alibi" (Press et al. 2021, arXiv 2108.12409).
      activation: of the MLP.
      causal: attention looks back only and the loss is of the next token; else tokens are masked
        and the loss is of these.
      post_norm: norms after the residual sums (BERT), not before attention and MLP.
      embed_norm: a norm after the embedding.
      scan: fold the blocks into one `nn.scan`.
      float8: MLPs multiply in float8 (see `float8`).
      remat: "", or what of a block is computed again in the backward pass (`REMAT_POLICIES`).
    """

    layers: int
    d_model: int
    heads: int
    vocab: int
    seq: int
    positions: Literal["learned", "alibi"] = "learned"
    activation: Literal["gelu", "relu"] = "gelu"
    causal: bool = True
    post_norm: bool = False
    embed_norm: bool = False
    scan: bool = False
    float8: bool = False
    remat: str = ""
    dtype: Any = jnp.bfloat16

    def __post_init__(self) -> None:
        if self.d_model % self.heads:
            raise ValueError(f"d_model={self.d_model} must split into heads={self.heads}")
        if self.remat and self.remat not in REMAT_POLICIES:
            raise ValueError(f"remat={self.remat!r} is none of {sorted(REMAT_POLICIES)}")


def _sized(
    family: str, sizes: Mapping[str, tuple[int, int, int]], vocab: int, seq: int, **options: Any
) -> dict[str, LanguageConfig]:
    return {
        f"{family}-{name}": LanguageConfig(*size, vocab, seq, **options)
        for name, size in sizes.items()
    }


_GPT2 = {"124m": (12, 768, 12), "355m": (24, 1024, 16), "774m": (36, 1280, 20)}
_GPT2 |= {"1.5b": (48, 1600, 25)}
_GPT3 = {"125m": (12, 768, 12), "1.3b": (24, 2048, 16), "2.7b": (32, 2560, 32)}
_GPT3 |= {"6.7b": (32, 4096, 32), "13b": (40, 5120, 40), "175b": (96, 12288, 96)}
_BERT = {"base": (12, 768, 12), "large": (24, 1024, 16)}
_OPT = {"125m": (12, 768, 12), "1.3b": (24, 2048, 32), "2.7b": (32, 2560, 32)}
_OPT |= {"6.7b": (32, 4096, 32), "13b": (40, 5120, 40), "30b": (48, 7168, 56)}
_OPT |= {"66b": (64, 9216, 72), "175b": (96, 12288, 96)}
_BLOOM = {"560m": (24, 1024, 16), "1.1b": (24, 1536, 16), "1.7b": (24, 2048, 16)}
_BLOOM |= {"3b": (30, 2560, 32), "7.1b": (30, 4096, 32), "176b": (70, 14336, 112)}

_BERT_OPTIONS: dict[str, Any] = {"causal": False, "post_norm": True, "embed_norm": True}
_BLOOM_OPTIONS: dict[str, Any] = {"positions": "alibi", "embed_norm": True}
_TINY: dict[str, Any] = {"dtype": jnp.float32}

CONFIGS: Mapping[str, LanguageConfig] = {
    "gpt-tiny": LanguageConfig(1, 32, 4, 64, 16, **_TINY),
    "gpt-scan-tiny": LanguageConfig(2, 32, 4, 64, 16, scan=True, remat="named", **_TINY),
    "bert-tiny": LanguageConfig(1, 32, 4, 64, 16, **_BERT_OPTIONS, **_TINY),
    "opt-tiny": LanguageConfig(1, 32, 4, 64, 16, activation="relu", remat="dots", **_TINY),
    "bloom-tiny": LanguageConfig(1, 32, 4, 64, 16, **_BLOOM_OPTIONS, **_TINY),
    **_sized("gpt2", _GPT2, 50257, 1024),
    **_sized("gpt3", _GPT3, 50257, 2048),
    **_sized("bert", _BERT, 30522, 512, **_BERT_OPTIONS),
    **_sized("opt", _OPT, 50272, 2048, activation="relu"),
    **_sized("bloom", _BLOOM, 250880, 2048, **_BLOOM_OPTIONS),
}


class Batch(NamedTuple):
    """What the model reads [batch, seq], what it should say there, and where that counts."""

    tokens: jax.Array
    targets: jax.Array
    weights: jax.Array


def alibi(heads: int, seq: int) -> jax.Array:
    """Penalty on distance, [heads, seq, seq]: one slope per head, 2^(-8 i / heads)."""
    slopes = 2.0 ** (-8.0 * jnp.arange(1, heads + 1) / heads)
    distance = jnp.arange(seq)[None, :] - jnp.arange(seq)[:, None]
    return slopes[:, None, None] * jnp.minimum(distance, 0)


class Attention(nn.Module):
    """Multi-head self-attention; [batch, seq, d_model] to the same."""

    config: LanguageConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        c = self.config
        width = c.d_model // c.heads
        query, key, value = (
            nn.DenseGeneral((c.heads, width), dtype=c.dtype, name=name)(x)
            for name in ("query", "key", "value")
        )
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / width**0.5
        scores = scores.astype(jnp.float32)
        if c.positions == "alibi":
            scores = scores + alibi(c.heads, x.shape[1])
        if c.causal:
            mask = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))
            scores = jnp.where(mask, scores, -1e9)
        weights = jax.nn.softmax(scores, axis=-1).astype(c.dtype)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, value)
        mixed = checkpoint_name(mixed, "attention")
        return nn.DenseGeneral(c.d_model, axis=(-2, -1), dtype=c.dtype, name="out")(mixed)


class Block(nn.Module):
    """Attention and MLP on the residual stream. Has the (carry, _) form of `nn.scan`."""

    config: LanguageConfig

    @nn.compact
    def __call__(self, x: jax.Array, _: None = None) -> tuple[jax.Array, None]:
        c = self.config

        def mlp(y: jax.Array) -> jax.Array:
            dense = partial(nn.Dense, dtype=c.dtype)
            if c.float8:
                dense = partial(dense, dot_general=float8.dot_general)
            y = dense(4 * c.d_model, name="mlp_in")(y)
            y = jax.nn.relu(y) if c.activation == "relu" else jax.nn.gelu(y)
            return dense(c.d_model, name="mlp_out")(y)

        parts: list[Callable[[jax.Array], jax.Array]] = [Attention(c, name="attention"), mlp]
        for i, part in enumerate(parts):
            norm = nn.LayerNorm(dtype=c.dtype, name=f"norm{i + 1}")
            x = norm(x + part(x)) if c.post_norm else x + part(norm(x))
        return x, None


class Language(nn.Module):
    """Token ids [batch, seq] to logits [batch, seq, vocab], by the tied embedding."""

    config: LanguageConfig

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        c = self.config
        embed = nn.Embed(c.vocab, c.d_model, dtype=c.dtype, name="embed")
        x = embed(tokens)
        if c.positions == "learned":
            place = nn.initializers.normal(0.02)
            x = x + self.param("positions", place, (c.seq, c.d_model)).astype(c.dtype)
        if c.embed_norm:
            x = nn.LayerNorm(dtype=c.dtype, name="embed_norm")(x)
        block: Any = Block
        if c.remat:
            block = nn.remat(Block, policy=REMAT_POLICIES[c.remat], prevent_cse=not c.scan)
        if c.scan:
            stack = nn.scan(
                block, variable_axes={"params": 0}, split_rngs={"params": True}, length=c.layers
            )
            x, _ = stack(c, name="layers")(x, None)
        else:
            for i in range(c.layers):
                x, _ = block(c, name=f"layer_{i}")(x, None)
        if not c.post_norm:
            x = nn.LayerNorm(dtype=c.dtype, name="norm")(x)
        return embed.attend(x)


def init_state(
    config: LanguageConfig, tx: optax.GradientTransformation, seed: int = 0
) -> TrainState:
    """A fresh train state on the default device."""
    tokens = jnp.zeros((1, config.seq), jnp.int32)
    return training.create_state(Language(config), tx, seed, tokens)


def sample_batch(config: LanguageConfig, batch: int, seed: int = 0) -> Batch:
    """Random tokens; the next token is the target, or (BERT) 15 % of them, hidden by token 0."""
    key, hide = jax.random.split(jax.random.key(seed))
    tokens = jax.random.randint(key, (batch, config.seq + 1), 0, config.vocab)
    if config.causal:
        return Batch(tokens[:, :-1], tokens[:, 1:], jnp.ones((batch, config.seq)))
    hidden = jax.random.bernoulli(hide, 0.15, (batch, config.seq))
    tokens = tokens[:, :-1]
    return Batch(jnp.where(hidden, 0, tokens), tokens, hidden.astype(jnp.float32))


def loss(config: LanguageConfig, params: Any, batch: Batch) -> jax.Array:
    """Mean cross-entropy where it counts."""
    logits = Language(config).apply({"params": params}, batch.tokens)
    losses = optax.softmax_cross_entropy_with_integer_labels(
        logits.astype(jnp.float32), batch.targets
    )
    return (losses * batch.weights).sum() / jnp.maximum(batch.weights.sum(), 1.0)


def make_train_step(config: LanguageConfig) -> training.Step:
    """The train step `(state, batch) -> (state, loss)`."""
    return training.make_step(partial(loss, config))
