"""Sequence models that walk along time: a diagonal state-space model and an LSTM.

The state-space layers are those of Orvieto et al. 2023 (arXiv 2303.06349): a linear recurrence with
one complex pole per state, run by `associative_scan`. The LSTM runs under `nn.scan`.
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
from jax import lax

from models import training


@dataclasses.dataclass(frozen=True)
class RecurrentConfig:
    """Sizes of `Recurrent`; `state` is the number of poles of a state-space layer."""

    cell: Literal["ssm", "lstm"]
    layers: int = 2
    d_model: int = 32
    state: int = 16
    vocab: int = 64
    seq: int = 16
    dtype: Any = jnp.float32


CONFIGS: Mapping[str, RecurrentConfig] = {
    "ssm-tiny": RecurrentConfig("ssm"),
    "ssm-370m": RecurrentConfig("ssm", 48, 1024, 2048, 50277, 2048, jnp.bfloat16),
    "lstm-tiny": RecurrentConfig("lstm"),
    "lstm-2x1500": RecurrentConfig("lstm", 2, 1500, vocab=10000, seq=128),
}


class StateSpace(nn.Module):
    """x_t = lambda x_(t-1) + B u_t, y_t = Re(C x_t) + D u_t; [batch, seq, d_model] to the same."""

    config: RecurrentConfig

    @nn.compact
    def __call__(self, u: jax.Array) -> jax.Array:
        c = self.config

        def slow(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
            """Decays between 0.9 and 0.999."""
            return jnp.log(-jnp.log(jax.random.uniform(key, shape, minval=0.9, maxval=0.999)))

        decay = jnp.exp(-jnp.exp(self.param("decay", slow, (c.state,))))
        phase = self.param("phase", nn.initializers.uniform(jnp.pi), (c.state,))
        pole = decay * jnp.exp(1j * phase)
        into = [
            nn.Dense(c.state, use_bias=False, dtype=c.dtype, name=name)(u).astype(jnp.float32)
            for name in ("b_real", "b_imag")
        ]
        driven = (into[0] + 1j * into[1]) * jnp.sqrt(1 - decay**2)
        poles = jnp.broadcast_to(pole, driven.shape)

        def join(a: Any, b: Any) -> Any:
            return a[0] * b[0], b[0] * a[1] + b[1]

        _, states = lax.associative_scan(join, (poles, driven), axis=1)
        parts = jnp.concatenate([states.real, states.imag], -1).astype(c.dtype)
        out = nn.Dense(c.d_model, use_bias=False, dtype=c.dtype, name="c")(parts)
        through = self.param("d", nn.initializers.ones, (c.d_model,))
        return out + u * through.astype(c.dtype)


class Block(nn.Module):
    """A recurrence and a gated MLP on the residual stream."""

    config: RecurrentConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        c = self.config
        y = nn.LayerNorm(dtype=c.dtype, name="norm")(x)
        if c.cell == "ssm":
            y = jax.nn.gelu(StateSpace(c, name="ssm")(y))
        else:
            y = nn.RNN(nn.OptimizedLSTMCell(c.d_model, dtype=c.dtype), name="lstm")(y)
        gate = nn.Dense(c.d_model, dtype=c.dtype, name="gate")(y)
        return x + nn.Dense(c.d_model, dtype=c.dtype, name="value")(y) * jax.nn.sigmoid(gate)


class Recurrent(nn.Module):
    """Token ids [batch, seq] to logits [batch, seq, vocab]."""

    config: RecurrentConfig

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        c = self.config
        x = nn.Embed(c.vocab, c.d_model, dtype=c.dtype, name="embed")(tokens)
        for i in range(c.layers):
            x = Block(c, name=f"layer_{i}")(x)
        return nn.Dense(c.vocab, dtype=c.dtype, name="head")(x)


def init_state(
    config: RecurrentConfig, tx: optax.GradientTransformation, seed: int = 0
) -> TrainState:
    """A fresh train state on the default device."""
    tokens = jnp.zeros((1, config.seq), jnp.int32)
    return training.create_state(Recurrent(config), tx, seed, tokens)


sample_batch = training.sample_tokens


def make_train_step(config: RecurrentConfig) -> training.Step:
    """The train step `(state, tokens) -> (state, loss)`."""

    def loss(params: Any, tokens: Any) -> jax.Array:
        logits = Recurrent(config).apply({"params": params}, tokens[:, :-1])
        losses = optax.softmax_cross_entropy_with_integer_labels(
            logits.astype(jnp.float32), tokens[:, 1:]
        )
        return losses.mean()

    return training.make_step(loss)
