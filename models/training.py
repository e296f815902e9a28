"""What the train steps of the models share: optimizer, state and step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import optax
from flax.training.train_state import TrainState

Loss = Callable[[Any, Any], jax.Array]  # (params, batch) to the mean loss
Step = Callable[[TrainState, Any], tuple[TrainState, jax.Array]]


def optimizer(learning_rate: float = 1e-3) -> optax.GradientTransformation:
    """AdamW, clipped by global norm.

    With LLaMA's epsilon (arXiv 2302.13971), at which gradients that are zero but for rounding (of a
    key's bias, say) move nothing.
    """
    adamw = optax.adamw(learning_rate, eps=1e-5)
    return optax.chain(optax.clip_by_global_norm(1.0), adamw)


def sample_tokens(config: Any, batch: int, seed: int = 0) -> jax.Array:
    """Random token ids [batch, seq + 1] below the config's `vocab`."""
    return jax.random.randint(jax.random.key(seed), (batch, config.seq + 1), 0, config.vocab)


def make_step(loss: Loss) -> Step:
    """The train step `(state, batch) -> (state, loss)` for one device."""

    def train_step(state: TrainState, batch: Any) -> tuple[TrainState, jax.Array]:
        value, grads = jax.value_and_grad(loss)(state.params, batch)
        return state.apply_gradients(grads=grads), value

    return train_step


def create_state(
    model: nn.Module, tx: optax.GradientTransformation, seed: int, *inputs: Any
) -> TrainState:
    """A fresh train state of `model`, initialised with `inputs`."""
    params = model.init(jax.random.key(seed), *inputs)["params"]
    return TrainState.create(apply_fn=model.apply, params=params, tx=tx)
