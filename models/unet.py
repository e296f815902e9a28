"""A diffusion U-Net: residual blocks with GroupNorm and a time embedding, attention in the middle.

The mould is the UNet of PartIR (arXiv 2401.11202, section 7): 9 residual blocks down, 12 up, and
between them 2 with a 16-head attention. Blocks as in Ho et al. 2020 (arXiv 2006.11239); the loss
is the squared error of the predicted noise.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.training.train_state import TrainState

from models import training


@dataclasses.dataclass(frozen=True)
class UNetConfig:
    """Sizes of `UNet`.

    Attributes:
      image: height and width; each level but the last halves them.
      channels: features of the first level.
      multipliers: features of each level, as multiples of `channels`.
      blocks: residual blocks of a level on the way down; one more on the way up.
      heads: of the attention in the middle.
      groups: of GroupNorm; divides all features.
      dtype: type of convolutions and products; parameters are float32.
    """

    image: int = 16
    channels: int = 16
    multipliers: tuple[int, ...] = (1, 2)
    blocks: int = 1
    heads: int = 4
    groups: int = 4
    dtype: Any = jnp.float32

    def __post_init__(self) -> None:
        if self.image % 2 ** (len(self.multipliers) - 1):
            raise ValueError(
                f"image={self.image} cannot be halved {len(self.multipliers) - 1} times"
            )
        if self.channels % self.groups or self.channels * self.multipliers[-1] % self.heads:
            raise ValueError(
                f"channels={self.channels} must split into groups={self.groups}, those of the"
                f" last level into heads={self.heads}"
            )


CONFIGS: Mapping[str, UNetConfig] = {
    "unet-tiny": UNetConfig(),
    "unet": UNetConfig(64, 320, (1, 2, 4), 3, 16, 32, jnp.bfloat16),
}


def time_embedding(time: jax.Array, width: int) -> jax.Array:
    """Sines and cosines of `time` [batch] at geometric frequencies; [batch, width]."""
    frequency = 10_000.0 ** (-jnp.arange(width // 2, dtype=jnp.float32) / (width // 2))
    angle = time[:, None] * frequency[None, :]
    return jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=-1)


class ResidualBlock(nn.Module):
    """GroupNorm, SiLU and 3x3 convolution, twice; the time enters between."""

    config: UNetConfig
    features: int

    @nn.compact
    def __call__(self, x: jax.Array, time: jax.Array) -> jax.Array:
        c = self.config

        def norm(name: str) -> nn.Module:
            return nn.GroupNorm(c.groups, dtype=c.dtype, name=name)

        y = nn.silu(norm("norm1")(x))
        y = nn.Conv(self.features, (3, 3), dtype=c.dtype, name="conv1")(y)
        y = y + nn.Dense(self.features, dtype=c.dtype, name="time")(nn.silu(time))[:, None, None]
        y = nn.silu(norm("norm2")(y))
        y = nn.Conv(self.features, (3, 3), dtype=c.dtype, name="conv2")(y)
        if x.shape[-1] != self.features:
            x = nn.Conv(self.features, (1, 1), dtype=c.dtype, name="skip")(x)
        return x + y


class ImageAttention(nn.Module):
    """Self-attention over all pixels."""

    config: UNetConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        c = self.config
        batch, height, width, features = x.shape
        y = nn.GroupNorm(c.groups, dtype=c.dtype, name="norm")(x)
        y = y.reshape(batch, height * width, features)
        y = nn.MultiHeadDotProductAttention(c.heads, dtype=c.dtype, name="attention")(y)
        return x + y.reshape(x.shape)


class UNet(nn.Module):
    """Images [batch, height, width, 3] and times [batch] to noise of the images' shape."""

    config: UNetConfig

    @nn.compact
    def __call__(self, images: jax.Array, time: jax.Array) -> jax.Array:
        c = self.config
        width = 4 * c.channels
        t = nn.Dense(width, dtype=c.dtype, name="time1")(time_embedding(time, c.channels))
        t = nn.Dense(width, dtype=c.dtype, name="time2")(nn.silu(t))
        x = nn.Conv(c.channels, (3, 3), dtype=c.dtype, name="first")(images)
        skips = [x]
        for level, multiplier in enumerate(c.multipliers):
            for i in range(c.blocks):
                x = ResidualBlock(c, c.channels * multiplier, name=f"down_{level}_{i}")(x, t)
                skips.append(x)
            if level + 1 < len(c.multipliers):
                x = nn.Conv(x.shape[-1], (3, 3), 2, dtype=c.dtype, name=f"halve_{level}")(x)
                skips.append(x)
        x = ResidualBlock(c, x.shape[-1], name="middle_0")(x, t)
        x = ImageAttention(c, name="middle_attention")(x)
        x = ResidualBlock(c, x.shape[-1], name="middle_1")(x, t)
        for level, multiplier in reversed(list(enumerate(c.multipliers))):
            for i in range(c.blocks + 1):
                x = jnp.concatenate([x, skips.pop()], axis=-1)
                x = ResidualBlock(c, c.channels * multiplier, name=f"up_{level}_{i}")(x, t)
            if level:
                x = x.repeat(2, axis=1).repeat(2, axis=2)
                x = nn.Conv(x.shape[-1], (3, 3), dtype=c.dtype, name=f"double_{level}")(x)
        x = nn.silu(nn.GroupNorm(c.groups, dtype=c.dtype, name="norm")(x))
        return nn.Conv(3, (3, 3), dtype=c.dtype, name="last")(x)


def init_state(config: UNetConfig, tx: optax.GradientTransformation, seed: int = 0) -> TrainState:
    """A fresh train state on the default device."""
    images = jnp.zeros((1, config.image, config.image, 3))
    return training.create_state(UNet(config), tx, seed, images, jnp.zeros((1,)))


def sample_batch(config: UNetConfig, batch: int, seed: int = 0) -> dict[str, jax.Array]:
    """Noised images, the noise in them and its times, [batch, ...]."""
    keys = jax.random.split(jax.random.key(seed), 3)
    shape = (batch, config.image, config.image, 3)
    return {
        "images": jax.random.normal(keys[0], shape),
        "noise": jax.random.normal(keys[1], shape),
        "time": jax.random.uniform(keys[2], (batch,), maxval=1000.0),
    }


def make_train_step(config: UNetConfig) -> training.Step:
    """The train step `(state, batch) -> (state, loss)`."""

    def loss(params: Any, batch: Any) -> jax.Array:
        guess = UNet(config).apply({"params": params}, batch["images"], batch["time"])
        return jnp.mean((guess.astype(jnp.float32) - batch["noise"]) ** 2)

    return training.make_step(loss)
