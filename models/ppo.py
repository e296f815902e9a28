"""Proximal policy optimization: advantages along trajectories and minibatches of them in one step.

Schulman et al. 2017 (arXiv 1707.06347): generalized advantages (a reversed scan over time), the
clipped loss, epochs of shuffled minibatches (a scan whose carry is the train state).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.training.train_state import TrainState
from jax import lax

from models import training


@dataclasses.dataclass(frozen=True)
class PpoConfig:
    """Sizes: observations, actions, hidden width, steps of a trajectory; the usual constants."""

    observation: int = 8
    actions: int = 4
    width: int = 32
    steps: int = 8
    epochs: int = 2
    minibatches: int = 2
    discount: float = 0.99
    trace: float = 0.95
    clip: float = 0.2


CONFIGS: Mapping[str, PpoConfig] = {
    "ppo-tiny": PpoConfig(),
    "ppo": PpoConfig(128, 18, 2048, 128, 4, 4),
}


class Batch(NamedTuple):
    """A trajectory of each of [batch] actors; all but the last are [batch, steps, ...]."""

    observations: jax.Array
    actions: jax.Array
    log_probs: jax.Array
    rewards: jax.Array
    dones: jax.Array
    key: jax.Array


class ActorCritic(nn.Module):
    """Observations to logits of actions and values."""

    config: PpoConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        c = self.config
        for i in range(2):
            x = nn.tanh(nn.Dense(c.width, name=f"layer_{i}")(x))
        return nn.Dense(c.actions, name="policy")(x), nn.Dense(1, name="value")(x)[..., 0]


def init_state(config: PpoConfig, tx: optax.GradientTransformation, seed: int = 0) -> TrainState:
    """A fresh train state on the default device."""
    x = jnp.zeros((1, config.observation))
    return training.create_state(ActorCritic(config), tx, seed, x)


def sample_batch(config: PpoConfig, batch: int, seed: int = 0) -> Batch:
    """A random trajectory."""
    keys = jax.random.split(jax.random.key(seed), 5)
    shape = (batch, config.steps)
    return Batch(
        jax.random.normal(keys[0], (*shape, config.observation)),
        jax.random.randint(keys[1], shape, 0, config.actions),
        jnp.full(shape, -jnp.log(config.actions)),
        jax.random.normal(keys[2], shape),
        jax.random.bernoulli(keys[3], 0.1, shape).astype(jnp.float32),
        keys[4],
    )


def advantages(config: PpoConfig, batch: Batch, values: jax.Array) -> jax.Array:
    """Generalized advantage estimates [batch, steps]; the value after the last step is 0."""
    after = jnp.concatenate([values[:, 1:], jnp.zeros_like(values[:, :1])], 1)
    going = config.discount * (1 - batch.dones)
    errors = batch.rewards + going * after - values

    def back(carry: jax.Array, x: Any) -> tuple[jax.Array, jax.Array]:
        error, on = x
        carry = error + on * config.trace * carry
        return carry, carry

    start = jnp.zeros_like(errors[:, 0])
    return lax.scan(back, start, (errors.T, going.T), reverse=True)[1].T


def make_train_step(
    config: PpoConfig,
) -> Callable[[TrainState, Batch], tuple[TrainState, jax.Array]]:
    """The train step `(state, batch) -> (state, mean loss)`."""
    model = ActorCritic(config)

    def loss_of(params: Any, part: Any) -> jax.Array:
        observations, actions, old, gains, returns = part
        logits, values = model.apply({"params": params}, observations)
        log_probs = jax.nn.log_softmax(logits)
        chosen = jnp.take_along_axis(log_probs, actions[:, None], -1)[:, 0]
        ratio = jnp.exp(chosen - old)
        clipped = jnp.clip(ratio, 1 - config.clip, 1 + config.clip)
        policy = -jnp.minimum(ratio * gains, clipped * gains).mean()
        entropy = -(jnp.exp(log_probs) * log_probs).sum(-1).mean()
        return policy + 0.5 * ((values - returns) ** 2).mean() - 0.01 * entropy

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, jax.Array]:
        _, values = model.apply({"params": state.params}, batch.observations)
        gains = advantages(config, batch, values)
        normal = (gains - gains.mean()) / (gains.std() + 1e-8)
        data = (batch.observations, batch.actions, batch.log_probs, normal, gains + values)
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), data)
        count = flat[1].shape[0]

        def update(state: TrainState, part: Any) -> tuple[TrainState, jax.Array]:
            loss, grads = jax.value_and_grad(loss_of)(state.params, part)
            return state.apply_gradients(grads=grads), loss

        def epoch(state: TrainState, key: jax.Array) -> tuple[TrainState, jax.Array]:
            order = jax.random.permutation(key, count)
            parts = jax.tree.map(
                lambda x: x[order].reshape(config.minibatches, -1, *x.shape[1:]), flat
            )
            return lax.scan(update, state, parts)

        state, losses = lax.scan(epoch, state, jax.random.split(batch.key, config.epochs))
        return state, losses.mean()

    return train_step
