"""Networks of dense layers: the deep linear one of the lectures, and an ensemble by `vmap`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from models import training


@dataclasses.dataclass(frozen=True)
class MlpConfig:
    """Sizes.

    Attributes:
      linear: no activations: the product of all matrices is what is learnt.
      members: of an ensemble, each with weights of its own, on the same batch; 0: no ensemble.
    """

    layers: int = 3
    width: int = 32
    features: int = 16
    linear: bool = False
    members: int = 0


CONFIGS: Mapping[str, MlpConfig] = {
    "deep-linear-tiny": MlpConfig(linear=True),
    "deep-linear": MlpConfig(12, 16384, 16384, linear=True),
    "ensemble-tiny": MlpConfig(members=4),
    "ensemble": MlpConfig(4, 4096, 1024, members=64),
}

State = tuple[Any, Any]  # parameters, optimizer state


class Batch(NamedTuple):
    """Inputs and targets, both [batch, features]."""

    inputs: jax.Array
    targets: jax.Array


def _init(config: MlpConfig, key: jax.Array) -> list[dict[str, jax.Array]]:
    widths = [config.features, *[config.width] * (config.layers - 1), config.features]
    params = []
    for i in range(config.layers):
        rows, columns = widths[i : i + 2]
        w = jax.random.normal(jax.random.fold_in(key, i), (rows, columns)) / rows**0.5
        params.append({"w": w} if config.linear else {"w": w, "b": jnp.zeros(columns)})
    return params


def _apply(config: MlpConfig, params: Any, x: jax.Array) -> jax.Array:
    for i, layer in enumerate(params):
        x = x @ layer["w"]
        if not config.linear:
            x = x + layer["b"]
            x = jax.nn.relu(x) if i < config.layers - 1 else x
    return x


def init_state(config: MlpConfig, tx: optax.GradientTransformation, seed: int = 0) -> State:
    """Random parameters, with a leading dim of members for an ensemble."""
    key = jax.random.key(seed)
    if config.members:
        params = jax.vmap(lambda k: _init(config, k))(jax.random.split(key, config.members))
    else:
        params = _init(config, key)
    return params, tx.init(params)


def sample_batch(config: MlpConfig, batch: int, seed: int = 0) -> Batch:
    """Random inputs, and their reverse as targets."""
    inputs = jax.random.normal(jax.random.key(seed), (batch, config.features))
    return Batch(inputs, inputs[:, ::-1])


def make_train_step(config: MlpConfig) -> Callable[[State, Batch], tuple[State, jax.Array]]:
    """The train step `(state, batch) -> (state, loss)`; an ensemble's losses are added up."""
    tx = training.optimizer()

    def loss_of(params: Any, batch: Batch) -> jax.Array:
        def one(params: Any) -> jax.Array:
            return ((_apply(config, params, batch.inputs) - batch.targets) ** 2).mean()

        return jax.vmap(one)(params).sum() if config.members else one(params)

    def train_step(state: State, batch: Batch) -> tuple[State, jax.Array]:
        params, opt_state = state
        loss, grads = jax.value_and_grad(loss_of)(params, batch)
        steps, opt_state = tx.update(grads, opt_state, params)
        return (optax.apply_updates(params, steps), opt_state), loss

    return train_step
