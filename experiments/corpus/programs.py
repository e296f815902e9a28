"""Generated train steps: blocks, norms, embeddings, losses and optimizers by a seed."""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from experiments.corpus.blocks import KINDS, Block, Params


@dataclasses.dataclass(frozen=True, slots=True)
class Sizes:
    """Choices of sizes.

    Attributes:
      batches / lengths / widths / vocabularies: from which a program's sizes are drawn.
      dtypes: of activations.
    """

    batches: tuple[int, ...] = (64, 128)
    lengths: tuple[int, ...] = (512, 1024)
    widths: tuple[int, ...] = (512, 768, 1024, 1536)
    vocabularies: tuple[int, ...] = (8192, 16384, 32000)
    dtypes: tuple[Any, ...] = (jnp.bfloat16, jnp.bfloat16, jnp.float32)


SMALL = Sizes((8,), (64,), (64,), (32,), (jnp.float32,))
"""Sizes of programs to run on CPU devices."""


@dataclasses.dataclass(frozen=True, slots=True)
class Generated:
    """A train step ``step(state, tokens) -> (state, loss)``.

    Attributes:
      name: blocks, norm, type of activations, loss and optimizer.
      init: function from a key to the state.
      tokens: shape of the int32 batch.
      vocabulary: tokens are below.
    """

    name: str
    step: Callable[[Any, jax.Array], tuple[Any, jax.Array]]
    init: Callable[[jax.Array], Any]
    tokens: tuple[int, int]
    vocabulary: int

    def abstract_args(self) -> tuple[Any, jax.ShapeDtypeStruct]:
        """Shapes of state and tokens."""
        state = jax.eval_shape(self.init, jax.random.key(0))
        return state, jax.ShapeDtypeStruct(self.tokens, jnp.int32)


OPTIMIZERS: dict[str, Callable[[], optax.GradientTransformation]] = {
    "sgd": lambda: optax.sgd(1e-2, momentum=0.9),
    "adam": lambda: optax.adam(1e-3),
    "adamw clip": lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3)),
    "adafactor": lambda: optax.adafactor(1e-3),
    "lion": lambda: optax.lion(1e-4),
}


def generate(seed: int, sizes: Sizes = Sizes()) -> Generated:
    """The step of a seed: two or three residual blocks between an embedding and a loss."""
    rng = random.Random(f"corpus {seed}")
    batch, length = rng.choice(sizes.batches), rng.choice(sizes.lengths)
    width, vocabulary = rng.choice(sizes.widths), rng.choice(sizes.vocabularies)
    dtype = rng.choice(sizes.dtypes)
    norm = rng.choice(["layer", "rms", "group"])
    tied, remat = rng.random() < 0.5, rng.random() < 0.2
    hashed, smoothed = rng.random() < 0.3, rng.random() < 0.3
    optimizer = rng.choice(sorted(OPTIMIZERS))
    kinds = rng.sample(KINDS, rng.choice([2, 2, 3]))
    blocks = [kind(rng, length, width) for kind in kinds]
    tables: dict[str, tuple[int, ...]] = {"embedding": (vocabulary, width)}
    tables |= {} if tied else {"head": (width, vocabulary)}
    tables |= {"pairs": (4 * vocabulary, width)} if hashed else {}

    def init(key: jax.Array) -> Any:
        shapes = dict(tables)
        shapes |= {
            f"{i} {b.name} {n}": s for i, b in enumerate(blocks) for n, s in b.shapes.items()
        }
        shapes |= {f"norm {i}": (width,) for i in range(len(blocks) + 1)}
        keys = jax.random.split(key, len(shapes))
        params = {
            name: jnp.ones(shape) if name.startswith("norm") else 0.02 * jax.random.normal(k, shape)
            for k, (name, shape) in zip(keys, shapes.items(), strict=True)
        }
        return {"params": params, "opt": OPTIMIZERS[optimizer]().init(params), "key": keys[0]}

    def branch(i: int, block: Block, params: Params, x: jax.Array, key: jax.Array) -> jax.Array:
        own = {n: params[f"{i} {block.name} {n}"] for n in block.shapes}
        return x + block.apply(own, normalized(norm, x, params[f"norm {i}"]), key)

    def loss_of(params: Params, tokens: jax.Array, key: jax.Array) -> jax.Array:
        x = params["embedding"][tokens].astype(dtype)
        if hashed:
            before = jnp.pad(tokens[:, :-1], ((0, 0), (1, 0)))
            x = x + params["pairs"][(tokens * 7919 + before) % (4 * vocabulary)].astype(dtype)
        for i, block in enumerate(blocks):
            run = functools.partial(branch, i, block)
            x = (jax.checkpoint(run) if remat else run)(params, x, jax.random.fold_in(key, i))
        x = normalized(norm, x, params[f"norm {len(blocks)}"])
        head = params["embedding"].T if tied else params["head"]
        logits = (x @ head.astype(dtype)).astype(jnp.float32)
        labels = jnp.roll(tokens, -1, axis=1)
        if not smoothed:
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
        soft = optax.smooth_labels(jax.nn.one_hot(labels, vocabulary), 0.1)
        return optax.softmax_cross_entropy(logits, soft).mean()

    def step(state: Any, tokens: jax.Array) -> tuple[Any, jax.Array]:
        key, used = jax.random.split(state["key"])
        loss, grads = jax.value_and_grad(loss_of)(state["params"], tokens, used)
        updates, opt = OPTIMIZERS[optimizer]().update(grads, state["opt"], state["params"])
        params = optax.apply_updates(state["params"], updates)
        return {"params": params, "opt": opt, "key": key}, loss

    said = [b.name for b in blocks] + [f"{norm} norm", jnp.dtype(dtype).name, optimizer]
    options = ("tied", tied), ("remat", remat), ("hashed", hashed), ("smoothed", smoothed)
    said += [word for word, on in options if on]
    return Generated("; ".join(said), step, init, (batch, length), vocabulary)


def normalized(kind: str, x: jax.Array, scale: jax.Array) -> jax.Array:
    """Activations [B, T, D] after a norm in float32."""
    y = x.astype(jnp.float32)
    if kind == "rms":
        y = y * jax.lax.rsqrt(jnp.mean(y * y, axis=-1, keepdims=True) + 1e-6)
    else:
        groups = 8 if kind == "group" else 1
        parts = y.reshape(*y.shape[:-1], groups, -1)
        parts = parts - parts.mean(-1, keepdims=True)
        parts = parts * jax.lax.rsqrt(jnp.mean(parts * parts, axis=-1, keepdims=True) + 1e-6)
        y = parts.reshape(y.shape)
    return (y * scale).astype(x.dtype)
