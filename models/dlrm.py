"""DLRM: large embedding tables, a dot interaction of features, and small MLPs.

Naumov et al. 2019 (arXiv 1906.00091); the sizes of the second config are MLPerf's for Criteo 1TB,
with tables of one size.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.training.train_state import TrainState

from models import training


@dataclasses.dataclass(frozen=True)
class DlrmConfig:
    """Sizes of `Dlrm`.

    Attributes:
      tables / rows / width: number of embedding tables, rows of each, features of a row.
      bag: rows of one table that an example adds up.
      dense: dense features.
      bottom / top: widths of the MLPs' hidden layers.
    """

    tables: int = 4
    rows: int = 64
    width: int = 8
    bag: int = 2
    dense: int = 8
    bottom: tuple[int, ...] = (16,)
    top: tuple[int, ...] = (16,)


CONFIGS: Mapping[str, DlrmConfig] = {
    "dlrm-tiny": DlrmConfig(),
    "dlrm-criteo": DlrmConfig(26, 4_000_000, 128, 1, 13, (512, 256), (1024, 1024, 512, 256)),
}


class Batch(NamedTuple):
    """Dense features [batch, dense], rows [batch, tables, bag], clicks [batch]."""

    dense: jax.Array
    rows: jax.Array
    clicks: jax.Array


class Mlp(nn.Module):
    """Dense layers with ReLU after each but the last."""

    widths: Sequence[int]

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for i, width in enumerate(self.widths):
            x = nn.Dense(width, name=f"layer_{i}")(x)
            x = nn.relu(x) if i < len(self.widths) - 1 else x
        return x


class Dlrm(nn.Module):
    """A batch to click logits [batch]."""

    config: DlrmConfig

    @nn.compact
    def __call__(self, batch: Batch) -> jax.Array:
        c = self.config
        init = nn.initializers.normal(c.width**-0.5)
        features = [nn.relu(Mlp((*c.bottom, c.width), name="bottom")(batch.dense))]
        for i in range(c.tables):
            table = self.param(f"table_{i}", init, (c.rows, c.width))
            features.append(table[batch.rows[:, i]].sum(1))
        stacked = jnp.stack(features, 1)
        dots = jnp.einsum("bif,bjf->bij", stacked, stacked)
        low = jnp.tril_indices(c.tables + 1, -1)
        x = jnp.concatenate([features[0], dots[:, low[0], low[1]]], -1)
        return Mlp((*c.top, 1), name="top")(x)[:, 0]


def init_state(config: DlrmConfig, tx: optax.GradientTransformation, seed: int = 0) -> TrainState:
    """A fresh train state on the default device."""
    return training.create_state(Dlrm(config), tx, seed, sample_batch(config, 1))


def sample_batch(config: DlrmConfig, batch: int, seed: int = 0) -> Batch:
    """Random features and clicks."""
    dense, rows, clicks = jax.random.split(jax.random.key(seed), 3)
    shape = (batch, config.tables, config.bag)
    return Batch(
        jax.random.normal(dense, (batch, config.dense)),
        jax.random.randint(rows, shape, 0, config.rows),
        jax.random.bernoulli(clicks, 0.3, (batch,)).astype(jnp.float32),
    )


def make_train_step(config: DlrmConfig) -> training.Step:
    """The train step `(state, batch) -> (state, loss)`."""

    def loss(params: Any, batch: Batch) -> jax.Array:
        logits = Dlrm(config).apply({"params": params}, batch)
        return optax.sigmoid_binary_cross_entropy(logits, batch.clicks).mean()

    return training.make_step(loss)
