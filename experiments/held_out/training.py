"""Training step of a loss: gradient, optax transformation and new state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

Made = tuple[Callable[..., Any], Callable[[], Any], tuple[Any, ...]]
"""A step, a function that makes the first state, and the abstract batch."""

BF16 = jnp.bfloat16


def ids(*shape: int) -> jax.ShapeDtypeStruct:
    """Abstract array of token or row ids."""
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def floats(*shape: int) -> jax.ShapeDtypeStruct:
    """Abstract array of f32 features."""
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def weights(**shapes: tuple[int, ...]) -> dict[str, Any]:
    """Weights of unit variance per output; vectors are zeros."""
    keys = jax.random.split(jax.random.key(0), len(shapes))
    return {
        name: jax.random.normal(key, shape) * shape[0] ** -0.5
        if len(shape) > 1
        else jnp.zeros(shape)
        for key, (name, shape) in zip(keys, shapes.items(), strict=True)
    }


def rms_norm(x: Any, gain: Any) -> Any:
    """Divides x [..., d] by the root mean square, times 1 + gain [d], in bf16."""
    wide = x.astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + 1e-6)
    return (wide * scale * (1.0 + gain)).astype(BF16)


def layer_norm(x: Any, gain: Any, bias: Any) -> Any:
    """Normalizes x [..., d], times 1 + gain [d], plus bias [d], in bf16."""
    wide = x.astype(jnp.float32)
    centred = wide - wide.mean(axis=-1, keepdims=True)
    scale = jax.lax.rsqrt(jnp.mean(centred * centred, axis=-1, keepdims=True) + 1e-5)
    return (centred * scale * (1.0 + gain) + bias).astype(BF16)


def dense(x: Any, w: Any) -> Any:
    """Product of x [..., a] and w [a, b] in bf16."""
    return x @ w.astype(BF16)


def cross_entropy(logits: Any, labels: Any) -> Any:
    """Mean cross entropy of f32 logits [..., classes] and labels [...]."""
    losses = optax.softmax_cross_entropy_with_integer_labels(logits.astype(jnp.float32), labels)
    return losses.mean()


def trained(loss: Callable[..., Any], init: Callable[[], Any], tx: Any, *batch: Any) -> Made:
    """A training step of `loss(params, *batch)` with the optax transformation `tx`."""

    def step(state: Any, *inputs: Any) -> tuple[Any, Any]:
        value, gradients = jax.value_and_grad(loss)(state["params"], *inputs)
        updates, moments = tx.update(gradients, state["moments"], state["params"])
        return {"params": optax.apply_updates(state["params"], updates), "moments": moments}, value

    def first() -> Any:
        params = init()
        return {"params": params, "moments": tx.init(params)}

    return step, first, batch
