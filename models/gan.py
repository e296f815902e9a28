"""A generative adversarial network: two networks, two optimizers, one step.

Goodfellow et al. 2014 (arXiv 1406.2661) with the non-saturating loss, DCGAN's convolutions.
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


@dataclasses.dataclass(frozen=True)
class GanConfig:
    """Sizes: latent features, features of the first layer, image (of which a quarter is made
    twice as large two times).
    """

    latent: int = 8
    channels: int = 8
    image: int = 16


CONFIGS: Mapping[str, GanConfig] = {
    "gan-tiny": GanConfig(),
    "gan": GanConfig(128, 512, 64),
}


class Generator(nn.Module):
    """Latents [batch, latent] to images [batch, image, image, 3]."""

    config: GanConfig

    @nn.compact
    def __call__(self, z: jax.Array) -> jax.Array:
        c, side = self.config, self.config.image // 4
        x = nn.Dense(side * side * c.channels, name="in")(z)
        x = x.reshape(z.shape[0], side, side, c.channels)
        x = nn.ConvTranspose(c.channels // 2, (4, 4), (2, 2), name="up1")(nn.relu(x))
        return jnp.tanh(nn.ConvTranspose(3, (4, 4), (2, 2), name="up2")(nn.relu(x)))


class Critic(nn.Module):
    """Images to logits [batch]: real or made."""

    config: GanConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        c = self.config
        for i in range(2):
            x = nn.Conv(c.channels // 2 * (i + 1), (4, 4), (2, 2), name=f"down{i + 1}")(x)
            x = nn.leaky_relu(x, 0.2)
        return nn.Dense(1, name="out")(x.reshape(x.shape[0], -1))[:, 0]


class State(NamedTuple):
    """Both networks with their optimizers, and the key that latents are drawn from."""

    generator: TrainState
    critic: TrainState
    key: jax.Array


def init_state(config: GanConfig, tx: optax.GradientTransformation, seed: int = 0) -> State:
    """A fresh state; `tx` is the generator's optimizer, the critic has its own."""
    made, judged, key = jax.random.split(jax.random.key(seed), 3)
    generator, critic = Generator(config), Critic(config)
    z = jnp.zeros((1, config.latent))
    x = jnp.zeros((1, config.image, config.image, 3))
    return State(
        TrainState.create(apply_fn=generator.apply, params=generator.init(made, z), tx=tx),
        TrainState.create(
            apply_fn=critic.apply, params=critic.init(judged, x), tx=optax.adam(2e-4, b1=0.5)
        ),
        key,
    )


def sample_batch(config: GanConfig, batch: int, seed: int = 0) -> jax.Array:
    """Random images in -1..1."""
    shape = (batch, config.image, config.image, 3)
    return jax.random.uniform(jax.random.key(seed), shape, minval=-1.0)


def make_train_step(config: GanConfig) -> Callable[[State, jax.Array], tuple[State, jax.Array]]:
    """The train step `(state, images) -> (state, losses)`: critic and generator, [2]."""
    generator, critic = Generator(config), Critic(config)

    def judged(logits: jax.Array, real: bool) -> jax.Array:
        targets = jnp.full(logits.shape, float(real))
        return optax.sigmoid_binary_cross_entropy(logits, targets).mean()

    def train_step(state: State, images: jax.Array) -> tuple[State, jax.Array]:
        key, draw = jax.random.split(state.key)
        z = jax.random.normal(draw, (images.shape[0], config.latent))

        def critic_loss(params: Any) -> jax.Array:
            fakes = jax.lax.stop_gradient(generator.apply(state.generator.params, z))
            real, fake = critic.apply(params, images), critic.apply(params, fakes)
            return judged(real, True) + judged(fake, False)

        def generator_loss(params: Any) -> jax.Array:
            fakes = generator.apply(params, z)
            return judged(critic.apply(state.critic.params, fakes), True)

        against, critic_grads = jax.value_and_grad(critic_loss)(state.critic.params)
        loss, grads = jax.value_and_grad(generator_loss)(state.generator.params)
        new = State(
            state.generator.apply_gradients(grads=grads),
            state.critic.apply_gradients(grads=critic_grads),
            key,
        )
        return new, jnp.stack([against, loss])

    return train_step
