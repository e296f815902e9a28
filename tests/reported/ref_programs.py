"""Programs with mutable refs, each beside the same program written with a carry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tests.support import floats_of

Array = jax.Array
Pair = tuple[Callable[..., Any], Callable[..., Any], tuple[Any, ...]]

BATCH, WIDTH = 32, 32


def _loss(w: Mapping[str, Array], x: Array) -> Array:
    h = jnp.tanh(x @ w["up"])
    return jnp.mean((h @ w["down"] - x) ** 2)


def _weights() -> dict[str, Array]:
    up, down = floats_of((WIDTH, 2 * WIDTH), (2 * WIDTH, WIDTH))
    return {"up": up, "down": down}


def _batch(*lead: int) -> Array:
    (x,) = floats_of((*lead, BATCH, WIDTH))
    return x


# Gradients of microbatches are added up.


def microbatches_ref(w: Any, xs: Array) -> Any:
    total = jax.tree.map(lambda p: jax.new_ref(jnp.zeros_like(p)), w)

    def body(_: None, x: Array) -> tuple[None, None]:
        for key, g in jax.grad(_loss)(w, x).items():
            total[key][...] += g
        return None, None

    lax.scan(body, None, xs)
    return {k: p - 0.1 * total[k][...] for k, p in w.items()}


def microbatches_carry(w: Any, xs: Array) -> Any:
    def body(total: Any, x: Array) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, total, jax.grad(_loss)(w, x)), None

    total, _ = lax.scan(body, jax.tree.map(jnp.zeros_like, w), xs)
    return {k: p - 0.1 * total[k] for k, p in w.items()}


# Keys and values of a decoder.


def cache_ref(w: Any, tokens: Array) -> Array:
    steps = 4
    keys = jax.new_ref(jnp.zeros((BATCH, steps, WIDTH)))

    def body(t: Array, x: Array) -> Array:
        keys[:, t] = x @ w["up"][:, :WIDTH]
        held = keys[...]
        scores = jax.nn.softmax(jnp.einsum("bd,btd->bt", x, held))
        return x + jnp.einsum("bt,btd->bd", scores, held)

    return lax.fori_loop(0, steps, body, tokens)


def cache_carry(w: Any, tokens: Array) -> Array:
    steps = 4

    def body(t: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        x, keys = state
        keys = lax.dynamic_update_index_in_dim(keys, x @ w["up"][:, :WIDTH], t, 1)
        scores = jax.nn.softmax(jnp.einsum("bd,btd->bt", x, keys))
        return x + jnp.einsum("bt,btd->bd", scores, keys), keys

    start = tokens, jnp.zeros((BATCH, steps, WIDTH))
    return lax.fori_loop(0, steps, body, start)[0]


# Mean and variance over the batch, as batch normalization keeps them.


def statistics_ref(w: Any, xs: Array) -> Any:
    mean, spread = jax.new_ref(jnp.zeros(WIDTH)), jax.new_ref(jnp.ones(WIDTH))

    def layer(x: Array) -> Array:
        mean[...] = 0.9 * mean[...] + 0.1 * x.mean(0)
        spread[...] = 0.9 * spread[...] + 0.1 * x.var(0)
        return (x - mean[...]) / (spread[...] + 1)

    def body(c: Array, x: Array) -> tuple[Array, Array]:
        y = jnp.tanh(layer(x) @ w["up"]) @ w["down"]
        return c + y, y.sum()

    out, sums = lax.scan(body, jnp.zeros_like(xs[0]), xs)
    return out, sums, mean[...], jax.freeze(spread)


def statistics_carry(w: Any, xs: Array) -> Any:
    def body(state: Any, x: Array) -> tuple[Any, Array]:
        c, mean, spread = state
        mean = 0.9 * mean + 0.1 * x.mean(0)
        spread = 0.9 * spread + 0.1 * x.var(0)
        y = jnp.tanh((x - mean) / (spread + 1) @ w["up"]) @ w["down"]
        return (c + y, mean, spread), y.sum()

    start = jnp.zeros_like(xs[0]), jnp.zeros(WIDTH), jnp.ones(WIDTH)
    (out, mean, spread), sums = lax.scan(body, start, xs)
    return out, sums, mean, spread


# Rows of each example are written at a place of its own, under vmap.


def mapped_ref(w: Any, x: Array, at: Array) -> Array:
    def one(row: Array, i: Array) -> Array:
        buffer = jax.new_ref(jnp.zeros((4, 2 * WIDTH)))
        buffer[i] = row @ w["up"]
        buffer[...] += 1.0
        return (buffer[...] @ w["down"]).sum(0) + buffer[i, :WIDTH]

    return jax.vmap(one)(x, at)


def mapped_carry(w: Any, x: Array, at: Array) -> Array:
    def one(row: Array, i: Array) -> Array:
        buffer = jnp.zeros((4, 2 * WIDTH)).at[i].set(row @ w["up"]) + 1.0
        return (buffer @ w["down"]).sum(0) + buffer[i, :WIDTH]

    return jax.vmap(one)(x, at)


# A generator that counts what it has drawn.


def counter_ref(w: Any, x: Array) -> Any:
    key, count = jax.random.key(0), jax.new_ref(jnp.int32(0))

    def noise(shape: tuple[int, ...]) -> Array:
        count[...] += 1
        return jax.random.bernoulli(jax.random.fold_in(key, count[...]), 0.5, shape)

    def body(c: Array, _: None) -> tuple[Array, None]:
        c = jnp.tanh((c * noise(c.shape)) @ w["up"])
        return (c * noise(c.shape)) @ w["down"], None

    out, _ = lax.scan(body, x, None, length=3)
    return out, count[...]


def counter_carry(w: Any, x: Array) -> Any:
    key = jax.random.key(0)

    def noise(count: Array, shape: tuple[int, ...]) -> Array:
        return jax.random.bernoulli(jax.random.fold_in(key, count), 0.5, shape)

    def body(state: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], None]:
        c, count = state
        c = jnp.tanh((c * noise(count + 1, c.shape)) @ w["up"])
        return ((c * noise(count + 2, c.shape)) @ w["down"], count + 2), None

    (out, count), _ = lax.scan(body, (x, jnp.int32(0)), None, length=3)
    return out, count


# Every step leaves a row of a history behind.


def history_ref(w: Any, x: Array) -> Array:
    history = jax.new_ref(jnp.zeros((4, BATCH, WIDTH)))

    def body(i: Array, x: Array) -> Array:
        x = jnp.tanh(x @ w["up"]) @ w["down"]
        history[i] = x
        jax.ref.addupdate(history, (3 - i,), 0.5 * x)
        return x

    lax.fori_loop(0, 4, body, x)
    return jax.freeze(history)


def history_carry(w: Any, x: Array) -> Array:
    def body(i: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        x, history = state
        x = jnp.tanh(x @ w["up"]) @ w["down"]
        history = lax.dynamic_update_index_in_dim(history, x, i, 0)
        old = lax.dynamic_index_in_dim(history, 3 - i, 0, keepdims=False)
        return x, lax.dynamic_update_index_in_dim(history, old + 0.5 * x, 3 - i, 0)

    return lax.fori_loop(0, 4, body, (x, jnp.zeros((4, BATCH, WIDTH))))[1]


# A loop that ends when what it holds is small.


def _large(state: tuple[Array, ...]) -> Array:
    return (state[0] < 5) & (state[1] > 0.1)


def until_small_ref(w: Any, x: Array) -> Array:
    held = jax.new_ref(x)

    def body(state: tuple[Array, Array]) -> tuple[Array, Array]:
        held[...] = 0.3 * jnp.tanh(held[...] @ w["up"]) @ w["down"]
        return state[0] + 1, (held[...] ** 2).sum()

    lax.while_loop(_large, body, (jnp.int32(0), jnp.float32(1)))
    return held[...]


def until_small_carry(w: Any, x: Array) -> Array:
    def body(state: tuple[Array, ...]) -> tuple[Array, ...]:
        held = 0.3 * jnp.tanh(state[2] @ w["up"]) @ w["down"]
        return state[0] + 1, (held**2).sum(), held

    return lax.while_loop(_large, body, (jnp.int32(0), jnp.float32(1), x))[2]


# A step that is skipped where the gradient is not finite.


def skipped_ref(w: Any, x: Array) -> Any:
    refs = jax.tree.map(jax.new_ref, w)
    grads = jax.grad(_loss)(w, x)
    finite = jnp.isfinite(grads["up"]).all()

    def apply() -> None:
        for key, g in grads.items():
            refs[key][...] -= 0.1 * g

    lax.cond(finite, apply, lambda: None)
    return {k: r[...] for k, r in refs.items()}


def skipped_carry(w: Any, x: Array) -> Any:
    grads = jax.grad(_loss)(w, x)
    finite = jnp.isfinite(grads["up"]).all()

    def apply(w: Any) -> Any:
        return {k: p - 0.1 * grads[k] for k, p in w.items()}

    return lax.cond(finite, apply, lambda w: w, w)


# Scans inside of scans, with refs of both.


def nested_ref(w: Any, xs: Array) -> Any:
    total, steps = jax.new_ref(jnp.zeros((BATCH, WIDTH))), jax.new_ref(jnp.float32(0))

    def outer(_: None, x: Array) -> tuple[None, Array]:
        own = jax.new_ref(x)

        def inner(_: None, i: Array) -> tuple[None, None]:
            own[...] = jnp.tanh(own[...] @ w["up"]) @ w["down"] + i
            total[...] += own[...]
            steps[...] += 1
            return None, None

        lax.scan(inner, None, jnp.arange(2.0))
        return None, own[...].sum()

    _, sums = lax.scan(outer, None, xs)
    return total[...], steps[...], sums


def nested_carry(w: Any, xs: Array) -> Any:
    def outer(state: Any, x: Array) -> tuple[Any, Array]:
        def inner(state: Any, i: Array) -> tuple[Any, None]:
            own, total, steps = state
            own = jnp.tanh(own @ w["up"]) @ w["down"] + i
            return (own, total + own, steps + 1), None

        (own, *state), _ = lax.scan(inner, (x, *state), jnp.arange(2.0))
        return tuple(state), own.sum()

    start = jnp.zeros((BATCH, WIDTH)), jnp.float32(0)
    (total, steps), sums = lax.scan(outer, start, xs)
    return total, steps, sums


# The loss itself accumulates in a ref, and is differentiated.


def differentiated_ref(w: Any, xs: Array) -> Any:
    def loss(w: Any) -> Array:
        total = jax.new_ref(jnp.zeros((BATCH, WIDTH)))

        def body(_: None, x: Array) -> tuple[None, None]:
            total[...] += jnp.tanh(x @ w["up"]) @ w["down"]
            return None, None

        lax.scan(body, None, xs)
        return (total[...] ** 2).mean()

    return jax.value_and_grad(loss)(w)


def differentiated_carry(w: Any, xs: Array) -> Any:
    def loss(w: Any) -> Array:
        def body(total: Array, x: Array) -> tuple[Array, None]:
            return total + jnp.tanh(x @ w["up"]) @ w["down"], None

        total, _ = lax.scan(body, jnp.zeros((BATCH, WIDTH)), xs)
        return (total**2).mean()

    return jax.value_and_grad(loss)(w)


PAIRS: Mapping[str, Pair] = {
    "microbatches": (microbatches_ref, microbatches_carry, (_weights(), _batch(4))),
    "cache": (cache_ref, cache_carry, (_weights(), _batch())),
    "statistics": (statistics_ref, statistics_carry, (_weights(), _batch(4))),
    "mapped": (mapped_ref, mapped_carry, (_weights(), _batch(), jnp.arange(BATCH) % 4)),
    "counter": (counter_ref, counter_carry, (_weights(), _batch())),
    "history": (history_ref, history_carry, (_weights(), _batch())),
    "until_small": (until_small_ref, until_small_carry, (_weights(), _batch())),
    "skipped": (skipped_ref, skipped_carry, (_weights(), _batch())),
    "nested": (nested_ref, nested_carry, (_weights(), _batch(4))),
    "differentiated": (differentiated_ref, differentiated_carry, (_weights(), _batch(4))),
}
