"""Low precision: bfloat16 weights with float32 master copies, products in float8, and gradients
added up over microbatches in a scan.

On the transformer of `language`; masters as in Micikevicius et al. 2017 (arXiv 1710.03740).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from models import language, training
from models.language import Batch, LanguageConfig


@dataclasses.dataclass(frozen=True)
class PrecisionConfig:
    """A base model, and the parts in which a batch is taken."""

    base: LanguageConfig
    microbatches: int = 1


_TINY = language.CONFIGS["gpt-tiny"]
CONFIGS: Mapping[str, PrecisionConfig] = {
    "master-tiny": PrecisionConfig(_TINY),
    "microbatch-tiny": PrecisionConfig(_TINY, 4),
    "float8-tiny": PrecisionConfig(dataclasses.replace(_TINY, float8=True)),
    "master-opt-13b": PrecisionConfig(language.CONFIGS["opt-13b"], 8),
}


class State(NamedTuple):
    """bfloat16 weights, their float32 masters, optimizer state of the masters."""

    params: Any
    masters: Any
    opt_state: Any


def init_state(config: PrecisionConfig, tx: optax.GradientTransformation, seed: int = 0) -> State:
    """A fresh state."""
    masters = language.init_state(config.base, optax.identity(), seed).params
    params = jax.tree.map(lambda x: x.astype(jnp.bfloat16), masters)
    return State(params, masters, tx.init(masters))


def sample_batch(config: PrecisionConfig, batch: int, seed: int = 0) -> Batch:
    """That of the base model."""
    return language.sample_batch(config.base, batch, seed)


def make_train_step(
    config: PrecisionConfig,
) -> Callable[[State, Batch], tuple[State, jax.Array]]:
    """The train step `(state, batch) -> (state, loss)`; gradients add up in float32."""
    tx = training.optimizer()

    def gradients(params: Any, batch: Batch) -> tuple[jax.Array, Any]:
        loss, grads = jax.value_and_grad(lambda p: language.loss(config.base, p, batch))(params)
        return loss, jax.tree.map(lambda g: g.astype(jnp.float32), grads)

    def accumulated(params: Any, batch: Batch) -> tuple[jax.Array, Any]:
        n = config.microbatches
        parts = jax.tree.map(lambda x: x.reshape(n, -1, *x.shape[1:]), batch)

        def add(total: Any, part: Batch) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, total, gradients(params, part)), None

        zeros = jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params)
        total, _ = lax.scan(add, (jnp.float32(0), zeros), parts)
        return jax.tree.map(lambda x: x / n, total)  # type: ignore[no-any-return]

    def train_step(state: State, batch: Batch) -> tuple[State, jax.Array]:
        of = gradients if config.microbatches == 1 else accumulated
        loss, grads = of(state.params, batch)
        steps, opt_state = tx.update(grads, state.opt_state, state.masters)
        masters = optax.apply_updates(state.masters, steps)
        params = jax.tree.map(lambda x: x.astype(jnp.bfloat16), masters)
        return State(params, masters, opt_state), loss

    return train_step
