"""Image classifiers of patches: ViT and MLP-Mixer.

Dosovitskiy et al. 2020 (arXiv 2010.11929, table 1), Tolstikhin et al. 2021 (arXiv 2105.01601,
table 1).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.training.train_state import TrainState

from models import training
from models.images import Batch, sample_batch

__all__ = ["CONFIGS", "init_state", "make_train_step", "sample_batch"]


@dataclasses.dataclass(frozen=True)
class VisionConfig:
    """Sizes of `Vision`.

    Attributes:
      mix: how patches see each other: by attention (ViT) or by an MLP over them (Mixer).
      d_token: width of the Mixer's MLP over patches.
    """

    mix: Literal["attention", "mlp"]
    layers: int
    d_model: int
    d_ff: int
    heads: int = 1
    d_token: int = 0
    image: int = 224
    patch: int = 16
    classes: int = 1000
    dtype: Any = jnp.bfloat16


_TINY: dict[str, Any] = {"image": 16, "patch": 4, "classes": 16, "dtype": jnp.float32}

CONFIGS: Mapping[str, VisionConfig] = {
    "vit-tiny": VisionConfig("attention", 2, 32, 64, 4, **_TINY),
    "vit-b16": VisionConfig("attention", 12, 768, 3072, 12),
    "vit-l16": VisionConfig("attention", 24, 1024, 4096, 16),
    "vit-h14": VisionConfig("attention", 32, 1280, 5120, 16, patch=14),
    "mixer-tiny": VisionConfig("mlp", 2, 32, 64, d_token=8, **_TINY),
    "mixer-b16": VisionConfig("mlp", 12, 768, 3072, d_token=384),
    "mixer-l16": VisionConfig("mlp", 24, 1024, 4096, d_token=512),
}


class Mlp(nn.Module):
    """Two layers over the last dim."""

    hidden: int
    dtype: Any

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        y = jax.nn.gelu(nn.Dense(self.hidden, dtype=self.dtype, name="in")(x))
        return nn.Dense(x.shape[-1], dtype=self.dtype, name="out")(y)


class Block(nn.Module):
    """Mixes patches, then features; [batch, patches, d_model] to the same."""

    config: VisionConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        c = self.config
        y = nn.LayerNorm(dtype=c.dtype, name="norm1")(x)
        if c.mix == "attention":
            y = nn.MultiHeadDotProductAttention(c.heads, dtype=c.dtype, name="attention")(y)
        else:
            y = Mlp(c.d_token, c.dtype, name="patches")(y.swapaxes(1, 2)).swapaxes(1, 2)
        x = x + y
        return x + Mlp(c.d_ff, c.dtype, name="mlp")(nn.LayerNorm(dtype=c.dtype, name="norm2")(x))


class Vision(nn.Module):
    """Images [batch, height, width, 3] to logits [batch, classes]."""

    config: VisionConfig

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        c = self.config
        size = (c.patch, c.patch)
        x = nn.Conv(c.d_model, size, size, "VALID", dtype=c.dtype, name="patch")(images)
        x = x.reshape(x.shape[0], -1, c.d_model)
        if c.mix == "attention":
            shape = (1, x.shape[1], c.d_model)
            x = x + self.param("positions", nn.initializers.normal(0.02), shape).astype(c.dtype)
        for i in range(c.layers):
            x = Block(c, name=f"layer_{i}")(x)
        x = nn.LayerNorm(dtype=c.dtype, name="norm")(x).mean(1)
        return nn.Dense(c.classes, dtype=jnp.float32, name="head")(x)


def init_state(config: VisionConfig, tx: optax.GradientTransformation, seed: int = 0) -> TrainState:
    """A fresh train state on the default device."""
    images = jnp.zeros((1, config.image, config.image, 3))
    return training.create_state(Vision(config), tx, seed, images)


def make_train_step(config: VisionConfig) -> training.Step:
    """The train step `(state, batch) -> (state, loss)`."""

    def loss(params: Any, batch: Batch) -> jax.Array:
        logits = Vision(config).apply({"params": params}, batch.images)
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch.labels).mean()

    return training.make_step(loss)
