"""A causal transformer in flax nnx, in the functional form that `jax.jit` takes.

The modules live in the state: `nnx.split` takes model and optimizer apart into their graph and
their arrays, the step puts them together, updates them in place, and gives the arrays back.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from models import training


@dataclasses.dataclass(frozen=True)
class NnxConfig:
    """Sizes of `Transformer`.

    Attributes:
      scan: fold the blocks into one `nnx.scan`, computed again in the backward pass.
    """

    layers: int = 2
    d_model: int = 32
    heads: int = 4
    vocab: int = 64
    seq: int = 16
    dtype: Any = jnp.float32
    scan: bool = False


CONFIGS: Mapping[str, NnxConfig] = {
    "nnx-tiny": NnxConfig(),
    "nnx-scan-tiny": NnxConfig(scan=True),
    "nnx-1b": NnxConfig(24, 2048, 16, 32000, 2048, jnp.bfloat16),
    "nnx-scan-1b": NnxConfig(24, 2048, 16, 32000, 2048, jnp.bfloat16, scan=True),
}


class Block(nnx.Module):
    """One pre-norm block; [batch, seq, d_model] to the same."""

    def __init__(self, c: NnxConfig, rngs: nnx.Rngs) -> None:
        width, options = c.d_model, {"dtype": c.dtype, "rngs": rngs}
        self.norm1 = nnx.LayerNorm(width, **options)
        self.attention = nnx.MultiHeadAttention(
            num_heads=c.heads, in_features=width, decode=False, **options
        )
        self.norm2 = nnx.LayerNorm(width, **options)
        self.mlp_in = nnx.Linear(width, 4 * width, **options)
        self.mlp_out = nnx.Linear(4 * width, width, **options)

    def __call__(self, x: jax.Array) -> jax.Array:
        mask = nnx.make_causal_mask(x[..., 0])
        x = x + self.attention(self.norm1(x), mask=mask)
        return x + self.mlp_out(jax.nn.gelu(self.mlp_in(self.norm2(x))))


class Transformer(nnx.Module):
    """Token ids [batch, seq] to logits [batch, seq, vocab]."""

    def __init__(self, c: NnxConfig, rngs: nnx.Rngs) -> None:
        self.embed = nnx.Embed(c.vocab, c.d_model, dtype=c.dtype, rngs=rngs)
        self.scan = c.scan
        if c.scan:  # every parameter of the blocks has a leading dim of layers
            split = nnx.split_rngs(splits=c.layers)
            self.blocks = split(nnx.vmap(lambda r: Block(c, r)))(rngs)
        else:
            self.blocks = nnx.List([Block(c, rngs) for _ in range(c.layers)])
        self.norm = nnx.LayerNorm(c.d_model, dtype=c.dtype, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = self.embed(tokens)
        if self.scan:
            again = nnx.remat(lambda x, block: block(x))
            x = nnx.scan(again, in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)(x, self.blocks)
        else:
            for block in self.blocks:
                x = block(x)
        return self.embed.attend(self.norm(x))


def _fresh(
    config: NnxConfig, tx: optax.GradientTransformation, seed: int
) -> tuple[Transformer, Any]:
    model = Transformer(config, nnx.Rngs(seed))
    return model, nnx.Optimizer(model, tx, wrt=nnx.Param)


def init_state(config: NnxConfig, tx: optax.GradientTransformation, seed: int = 0) -> nnx.State:
    """Arrays of model and optimizer."""
    return nnx.state(_fresh(config, tx, seed))


sample_batch = training.sample_tokens


def make_train_step(config: NnxConfig) -> Any:
    """The train step `(state, tokens) -> (state, loss)`."""
    graph = nnx.graphdef(nnx.eval_shape(lambda: _fresh(config, training.optimizer(), 0)))

    def loss_of(model: Transformer, tokens: jax.Array) -> jax.Array:
        logits = model(tokens[:, :-1]).astype(jnp.float32)
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    def train_step(state: nnx.State, tokens: jax.Array) -> tuple[nnx.State, jax.Array]:
        model, optimizer = nnx.merge(graph, state)
        loss, grads = nnx.value_and_grad(loss_of)(model, tokens)
        optimizer.update(model, grads)
        return nnx.state((model, optimizer)), loss

    return train_step
