"""LoRA fine-tuning: a frozen transformer, and low-rank updates of its matrices that are trained.

Hu et al. 2021 (arXiv 2106.09685): W + (alpha / rank) A B. The frozen weights are in the state and
leave the step as they came; optimizer state exists for the updates only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from models import language, training
from models.language import Batch, LanguageConfig


@dataclasses.dataclass(frozen=True)
class LoraConfig:
    """A base model, and rank and scale of the updates."""

    base: LanguageConfig
    rank: int = 4
    alpha: float = 8.0


CONFIGS: Mapping[str, LoraConfig] = {
    "lora-tiny": LoraConfig(language.CONFIGS["gpt-tiny"]),
    "lora-opt-13b": LoraConfig(language.CONFIGS["opt-13b"], 16, 32.0),
}


class State(NamedTuple):
    """Frozen weights, updates by the path of what they update, optimizer state of the updates."""

    frozen: Any
    updates: dict[str, dict[str, jax.Array]]
    opt_state: Any


def _matrices(params: Any) -> dict[str, jax.Array]:
    """Kernels of attention projections and MLPs by path."""
    flat, _ = jax.tree_util.tree_flatten_with_path(params)
    named = {jax.tree_util.keystr(path, simple=True, separator="/"): x for path, x in flat}
    return {name: x for name, x in named.items() if name.endswith("kernel")}


def _with_updates(config: LoraConfig, frozen: Any, updates: Any) -> Any:
    """The weights to compute with."""
    scale = config.alpha / config.rank

    def moved(path: Any, x: jax.Array) -> jax.Array:
        update = updates.get(jax.tree_util.keystr(path, simple=True, separator="/"))
        if update is None:
            return x
        return x + scale * (update["a"] @ update["b"]).reshape(x.shape)

    return jax.tree_util.tree_map_with_path(moved, frozen)


def init_state(config: LoraConfig, tx: optax.GradientTransformation, seed: int = 0) -> State:
    """Random frozen weights; updates that start at zero."""
    frozen = language.init_state(config.base, optax.identity(), seed).params
    updates = {}
    for i, (name, kernel) in enumerate(sorted(_matrices(frozen).items())):
        rows = kernel.shape[0]
        key = jax.random.fold_in(jax.random.key(seed + 1), i)
        a = jax.random.normal(key, (rows, config.rank)) / rows**0.5
        updates[name] = {"a": a, "b": jnp.zeros((config.rank, kernel.size // rows))}
    return State(frozen, updates, tx.init(updates))


def sample_batch(config: LoraConfig, batch: int, seed: int = 0) -> Batch:
    """That of the base model."""
    return language.sample_batch(config.base, batch, seed)


def make_train_step(config: LoraConfig) -> Callable[[State, Batch], tuple[State, jax.Array]]:
    """The train step `(state, batch) -> (state, loss)`."""
    tx = training.optimizer()

    def loss_of(updates: Any, frozen: Any, batch: Batch) -> jax.Array:
        params = _with_updates(config, frozen, updates)
        return language.loss(config.base, params, batch)

    def train_step(state: State, batch: Batch) -> tuple[State, jax.Array]:
        loss, grads = jax.value_and_grad(loss_of)(state.updates, state.frozen, batch)
        steps, opt_state = tx.update(grads, state.opt_state, state.updates)
        return State(state.frozen, optax.apply_updates(state.updates, steps), opt_state), loss

    return train_step
