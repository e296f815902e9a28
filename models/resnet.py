"""ResNet with BatchNorm, whose running statistics are part of the state.

He et al. 2015 (arXiv 1512.03385, table 1), in the form with the stride on the 3x3 convolution.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.training import train_state

from models import training
from models.images import Batch, sample_batch

__all__ = ["CONFIGS", "init_state", "make_train_step", "sample_batch"]


@dataclasses.dataclass(frozen=True)
class ResNetConfig:
    """Sizes of `ResNet`.

    Attributes:
      stages: blocks of each stage; each but the first halves the image.
      channels: features of the first stage's blocks; the next have twice as many.
    """

    stages: tuple[int, ...] = (1, 1)
    channels: int = 8
    classes: int = 16
    image: int = 16
    dtype: Any = jnp.float32


CONFIGS: Mapping[str, ResNetConfig] = {
    "resnet-tiny": ResNetConfig(),
    "resnet50": ResNetConfig((3, 4, 6, 3), 64, 1000, 224, jnp.bfloat16),
    "resnet152": ResNetConfig((3, 8, 36, 3), 64, 1000, 224, jnp.bfloat16),
}


class TrainState(train_state.TrainState):
    """With BatchNorm's running means and variances."""

    batch_stats: Any


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions beside a shortcut."""

    channels: int
    stride: int
    dtype: Any

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        conv = partial(nn.Conv, use_bias=False, dtype=self.dtype)
        norm = partial(nn.BatchNorm, use_running_average=not train, dtype=self.dtype)
        strides = (self.stride, self.stride)
        y = nn.relu(norm()(conv(self.channels, (1, 1))(x)))
        y = nn.relu(norm()(conv(self.channels, (3, 3), strides)(y)))
        y = norm(scale_init=nn.initializers.zeros)(conv(4 * self.channels, (1, 1))(y))
        if x.shape != y.shape:
            x = norm(name="shortcut_norm")(
                conv(4 * self.channels, (1, 1), strides, name="shortcut")(x)
            )
        return nn.relu(x + y)


class ResNet(nn.Module):
    """Images to logits [batch, classes]."""

    config: ResNetConfig

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = True) -> jax.Array:
        c = self.config
        x = nn.Conv(c.channels, (7, 7), (2, 2), use_bias=False, dtype=c.dtype, name="stem")(x)
        x = nn.BatchNorm(use_running_average=not train, dtype=c.dtype, name="stem_norm")(x)
        x = nn.max_pool(nn.relu(x), (3, 3), (2, 2), "SAME")
        for i, blocks in enumerate(c.stages):
            for j in range(blocks):
                stride = 2 if i and not j else 1
                name = f"stage_{i}_block_{j}"
                x = Bottleneck(c.channels * 2**i, stride, c.dtype, name=name)(x, train)
        return nn.Dense(c.classes, dtype=jnp.float32, name="head")(x.mean((1, 2)))


def init_state(config: ResNetConfig, tx: optax.GradientTransformation, seed: int = 0) -> TrainState:
    """A fresh train state on the default device."""
    model = ResNet(config)
    images = jnp.zeros((1, config.image, config.image, 3))
    variables = model.init(jax.random.key(seed), images)
    return TrainState.create(
        apply_fn=model.apply,
        params=variables["params"],
        tx=tx,
        batch_stats=variables["batch_stats"],
    )


def make_train_step(config: ResNetConfig) -> training.Step:
    """The train step `(state, batch) -> (state, loss)`; it moves the running statistics, too."""

    def loss_of(params: Any, stats: Any, batch: Batch) -> tuple[jax.Array, Any]:
        variables = {"params": params, "batch_stats": stats}
        logits, moved = ResNet(config).apply(variables, batch.images, mutable=["batch_stats"])
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch.labels)
        return losses.mean(), moved["batch_stats"]

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, jax.Array]:
        (loss, stats), grads = jax.value_and_grad(loss_of, has_aux=True)(
            state.params, state.batch_stats, batch
        )
        return state.apply_gradients(grads=grads, batch_stats=stats), loss

    return train_step
