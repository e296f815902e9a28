"""Random uses of mutable refs: accumulators, buffers, flags, refs of examples."""

from __future__ import annotations

import random
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

FORMS = ("total", "rows", "parts", "places", "flag", "until", "mapped", "called", "scanned")


def ref_form(rng: random.Random, shape: tuple[int, ...]) -> Any:
    """A function of one array of a shape, which gives one of the same shape through refs.

    The forms: sums over rows, rows written at an index that moves, parts written in place, places
    named by integers, a write in a branch, a loop with a data-dependent end, refs under vmap, refs
    given to a call, and a ref whose rows are scanned over.
    """
    return globals()[f"_{rng.choice(FORMS)}"](rng, shape)


def _total(rng: random.Random, shape: tuple[int, ...]) -> Any:
    keep, nested = rng.choice([0.5, 1.0]), rng.random() < 0.4

    def run(x: jax.Array) -> jax.Array:
        total = jax.new_ref(jnp.zeros(shape[1:]))

        def add(row: jax.Array) -> None:
            total[...] = total[...] * keep + jnp.tanh(row)

        def body(c: None, row: jax.Array) -> Any:
            if nested:
                lax.scan(lambda _, k: (None, add(row * k)), None, jnp.arange(2.0))
            else:
                add(row)
            return c, row * total[...]

        return lax.scan(body, None, x)[1] + total[...]

    return run


def _rows(rng: random.Random, shape: tuple[int, ...]) -> Any:
    add, far = rng.random() < 0.5, rng.randrange(shape[0])

    def run(x: jax.Array) -> jax.Array:
        buffer = jax.new_ref(x * 0.5)

        def body(i: jax.Array, c: jax.Array) -> jax.Array:
            at = (i + far) % shape[0]
            if add:
                jax.ref.addupdate(buffer, (at,), x[i])
            else:
                buffer[at] = jnp.sin(x[i]) + buffer[i]
            return c + buffer[at].sum() * 0.1

        last = lax.fori_loop(0, shape[0], body, jnp.float32(0))
        return buffer[...] + last

    return run


def _parts(rng: random.Random, shape: tuple[int, ...]) -> Any:
    where = tuple(_part(rng, n) for n in shape[: rng.randint(1, len(shape))])

    def run(x: jax.Array) -> jax.Array:
        ref = jax.new_ref(x)
        ref[where] = ref[where] * 0.5 + x[where]
        jax.ref.addupdate(ref, where, jnp.cos(x[where]))
        return jax.freeze(ref)

    return run


def _part(rng: random.Random, size: int) -> Any:
    start = rng.randrange(size)
    if rng.random() < 0.3:
        return start
    return slice(start, rng.randint(start + 1, size), rng.choice([None, 1, 2]))


def _places(rng: random.Random, shape: tuple[int, ...]) -> Any:
    dim = rng.randrange(len(shape))
    rows = rng.sample(range(shape[dim]), rng.randint(1, shape[dim]))
    part = slice(0, rng.randint(1, shape[0]))

    def run(x: jax.Array) -> jax.Array:
        ref, at = jax.new_ref(x * 0.5), jnp.array(rows)
        where = (slice(None),) * dim + (at,)
        if dim and part.stop < shape[0]:
            where = (part, *where[1:])
        ref[where] = jnp.tanh(x[where])
        jax.ref.addupdate(ref, where, x[where])
        return ref[...]

    return run


def _flag(rng: random.Random, shape: tuple[int, ...]) -> Any:
    bound = rng.choice([-10.0, 0.0, 10.0])

    def run(x: jax.Array) -> jax.Array:
        ref, seen = jax.new_ref(x), jax.new_ref(jnp.float32(0))

        def write() -> jax.Array:
            ref[0] = jnp.sin(x[-1])
            seen[...] += 1.0
            return seen[...]

        out = lax.cond(x.sum() > bound, write, lambda: seen[...] * 2)
        return ref[...] * (out + seen[...] + 1)

    return run


def _until(rng: random.Random, shape: tuple[int, ...]) -> Any:
    """A loop whose end depends on data, of no gradient."""
    tested, counted = rng.random() < 0.5, rng.random() < 0.5

    @jax.custom_vjp
    def loop(x: jax.Array) -> jax.Array:
        ref, tests = jax.new_ref(x), jax.new_ref(jnp.float32(0))

        def small(i: jax.Array) -> jax.Array:
            if counted:
                tests[...] += 1
            return (i < 3) & ((jnp.abs(ref[...]).max() > 0.8) | (not tested))

        def body(i: jax.Array) -> jax.Array:
            ref[...] = jnp.sin(ref[...]) * 0.5
            return i + 1

        end = lax.while_loop(small, body, jnp.int32(0))
        return ref[...] + end + tests[...]

    loop.defvjp(lambda x: (loop(x), None), lambda _, g: (jnp.zeros_like(g),))
    return lambda x: x * loop(x)


def _mapped(rng: random.Random, shape: tuple[int, ...]) -> Any:
    dim, own = rng.randrange(len(shape)), rng.random() < 0.5
    inner = tuple(n for d, n in enumerate(shape) if d != dim)

    def example(x: jax.Array, i: jax.Array) -> jax.Array:
        ref = jax.new_ref(x * 0.5)
        if inner:
            at = i % inner[0] if own else inner[0] - 1
            ref[at] = jnp.tanh(x[0])
            jax.ref.addupdate(ref, (0,), x[at])
        ref[...] += x
        return ref[...]

    def run(x: jax.Array) -> jax.Array:
        # The examples' dim is among those of the ref where it is written.
        step = jax.vmap(example, in_axes=(dim, 0), out_axes=dim)
        return step(x, jnp.arange(shape[dim]) * 2)

    return run


def _called(rng: random.Random, shape: tuple[int, ...]) -> Any:
    twice = rng.random() < 0.5

    def run(x: jax.Array) -> jax.Array:
        ref = jax.new_ref(x)

        @jax.jit
        def add(ref: Any, y: jax.Array) -> jax.Array:
            ref[...] += y * 0.5
            return y + ref[0]

        y = add(ref, x)
        return add(ref, y) if twice else ref[...]

    return run


def _scanned(rng: random.Random, shape: tuple[int, ...]) -> Any:
    back = rng.random() < 0.5

    def run(x: jax.Array) -> jax.Array:
        ref = jax.new_ref(lax.stop_gradient(x))

        def body(c: jax.Array, row: Any) -> Any:
            row[...] = jnp.sin(row[...]) + c
            return c * 0.5 + row[...].sum() * 0.1, row[...] * 2

        _, out = lax.scan(body, jnp.float32(1), ref, reverse=back)
        return out + ref[...]

    return run
