"""Random small programs, grown value by value: what the property tests run."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.generated.batched_loops import batched_loop
from tests.generated.iterations import iterations
from tests.generated.recurrences import recurrence
from tests.generated.refs import ref_form
from tests.generated.row_numbers import row_numbers
from tests.generated.windows import conv, frames, overlapping_pool, pool, strided_conv

SIZES = (2, 3, 4, 6, 8)
KINDS = (
    *("unary", "binary", "dot", "dot", "reduce", "max", "transpose", "reshape", "broadcast"),
    *("slice", "gather", "scan", "cond", "remat", "softmax", "concat", "random", "where"),
    *("scatter", "sort", "cumulative", "rows", "update", "pad", "reverse", "repeat", "conv"),
    *("strided_conv", "overlapping_pool", "roll", "middle"),
    *("pool", "argmax", "batched", "narrow", "whiles", "reduce_in_scan", "solve"),
    "batched_loop",
    "refs",
    *("no_iterations", "row_numbers", "frames", "tangent", "iterations", "recurrence"),
)


class Builder:
    """Grows a program value by value from a seeded generator."""

    batched_loop = batched_loop
    iterations = iterations
    recurrence = recurrence
    row_numbers = row_numbers
    conv = conv
    frames = frames
    pool = pool
    strided_conv = strided_conv
    overlapping_pool = overlapping_pool

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.shapes: list[tuple[int, ...]] = []
        self.steps: list[Callable[[list[Any]], Any]] = []

    def shape(self, rank: int | None = None) -> tuple[int, ...]:
        rank = self.rng.randint(1, 3) if rank is None else rank
        return tuple(self.rng.choice(SIZES) for _ in range(rank))

    def pick(self, wanted: Callable[[tuple[int, ...]], bool] = lambda s: True) -> int | None:
        found = [i for i, s in enumerate(self.shapes) if wanted(s)]
        return self.rng.choice(found) if found else None

    def emit(self, shape: tuple[int, ...], step: Callable[[list[Any]], Any]) -> None:
        self.shapes.append(shape)
        self.steps.append(step)

    def grow(self) -> None:
        kind = self.rng.choice(KINDS)
        getattr(self, kind)()

    def unary(self) -> None:
        i = self.pick()
        fn = self.rng.choice([jnp.tanh, jnp.negative, lambda x: x * 0.5, lambda x: x + 1.0])
        self.emit(self.shapes[i], lambda v: fn(v[i]))

    def binary(self) -> None:
        i = self.pick()
        j = self.pick(lambda s: s == self.shapes[i])
        fn = self.rng.choice([jnp.add, jnp.multiply, jnp.subtract])
        self.emit(self.shapes[i], lambda v: fn(v[i], v[j]))

    def dot(self) -> None:
        i = self.pick(lambda s: len(s) >= 1)
        a = self.shapes[i]
        da = self.rng.randrange(len(a))
        j = self.pick(lambda s: a[da] in s)
        b = self.shapes[j]
        db = self.rng.choice([d for d, n in enumerate(b) if n == a[da]])
        shape = tuple(n for d, n in enumerate(a) if d != da)
        shape += tuple(n for d, n in enumerate(b) if d != db)
        if 1 <= len(shape) <= 3:
            dims = (((da,), (db,)), ((), ()))
            self.emit(shape, lambda v: lax.dot_general(v[i], v[j], dims) / a[da])

    def reduce(self) -> None:
        i = self.pick(lambda s: len(s) >= 2)
        if i is not None:
            d = self.rng.randrange(len(self.shapes[i]))
            shape = tuple(n for k, n in enumerate(self.shapes[i]) if k != d)
            self.emit(shape, lambda v: v[i].sum(d) / 4)

    def max(self) -> None:
        i = self.pick(lambda s: len(s) >= 2)
        if i is not None:
            # The gradient of max compares its operand with the maximum. XLA may compute both in
            # different fusions, which round differently: nothing is equal, 0 / 0 follows (seen in
            # the evaluator too, and only under these tests' XLA flags). Softmax holds it constant.
            self.emit(
                self.shapes[i],
                lambda v: v[i] - lax.stop_gradient(v[i].max(-1, keepdims=True)),
            )

    def transpose(self) -> None:
        i = self.pick(lambda s: len(s) >= 2)
        if i is not None:
            order = list(range(len(self.shapes[i])))
            self.rng.shuffle(order)
            shape = tuple(self.shapes[i][d] for d in order)
            self.emit(shape, lambda v: v[i].transpose(order))

    def reshape(self) -> None:
        i = self.pick()
        s = self.shapes[i]
        if len(s) >= 2 and self.rng.random() < 0.5:
            shape = (s[0] * s[1], *s[2:])
        else:
            part = self.rng.choice([n for n in (2, 3, 4) if s[0] % n == 0] or [1])
            shape = (part, s[0] // part, *s[1:])
        if len(shape) <= 4:
            self.emit(shape, lambda v: v[i].reshape(shape))

    def broadcast(self) -> None:
        i = self.pick(lambda s: len(s) <= 2)
        if i is not None:
            n = self.rng.choice(SIZES)
            shape = (n, *self.shapes[i])
            self.emit(shape, lambda v: jnp.broadcast_to(v[i], shape))

    def slice(self) -> None:
        i = self.pick(lambda s: s[-1] > 2)
        if i is not None:
            shape = (*self.shapes[i][:-1], self.shapes[i][-1] // 2)
            self.emit(shape, lambda v: v[i][..., : shape[-1]])

    def gather(self) -> None:
        i = self.pick()
        s = self.shapes[i]
        ids = np.array([self.rng.randrange(s[0]) for _ in range(4)])
        self.emit((4, *s[1:]), lambda v: v[i][ids])

    def scan(self) -> None:
        i = self.pick(lambda s: len(s) >= 2)
        if i is not None:

            def run(v: list[Any]) -> Any:
                carry = jnp.zeros(self.shapes[i][1:])
                return lax.scan(lambda c, x: (jnp.tanh(c + x), c * x), carry, v[i])[1]

            self.emit(self.shapes[i], run)

    def cond(self) -> None:
        i = self.pick()
        self.emit(
            self.shapes[i],
            lambda v: lax.cond(v[0].sum() > 0, jnp.tanh, lambda x: x * 2, v[i]),
        )

    def remat(self) -> None:
        i = self.pick()
        self.emit(
            self.shapes[i],
            lambda v: jax.grad(lambda x: jax.checkpoint(lambda y: jnp.sin(y) * y)(x).sum())(v[i]),
        )

    def softmax(self) -> None:
        i = self.pick()
        self.emit(self.shapes[i], lambda v: jax.nn.softmax(v[i], -1))

    def concat(self) -> None:
        i = self.pick()
        shape = (*self.shapes[i][:-1], 2 * self.shapes[i][-1])
        if shape[-1] <= 16:
            self.emit(shape, lambda v: jnp.concatenate([v[i], v[i] * 2], -1))

    def random(self) -> None:
        shape, seed = self.shape(), self.rng.randrange(100)
        self.emit(shape, lambda v: jax.random.uniform(jax.random.key(seed), shape, "float32"))

    def where(self) -> None:
        i = self.pick()
        self.emit(self.shapes[i], lambda v: jnp.where(v[i] > 0, v[i], 0.1))

    def scatter(self) -> None:
        i = self.pick()
        s = self.shapes[i]
        ids = np.array([self.rng.randrange(s[0]) for _ in range(3)])
        add = self.rng.random() < 0.7

        def run(v: list[Any]) -> Any:
            at = jnp.zeros((s[0] + 1, *s[1:])).at[ids]
            return (at.add if add else at.max)(v[i][ids] * 0.5)[: s[0]]

        self.emit(s, run)

    def sort(self) -> None:
        i = self.pick()
        d = self.rng.randrange(len(self.shapes[i]))
        self.emit(self.shapes[i], lambda v: jnp.sort(v[i], axis=d))

    def cumulative(self) -> None:
        i = self.pick()
        d = self.rng.randrange(len(self.shapes[i]))
        fn = self.rng.choice([lax.cumsum, lax.cummax, lax.cumlogsumexp])
        self.emit(self.shapes[i], lambda v: fn(v[i], axis=d, reverse=d == 0) / 4)

    def rows(self) -> None:
        """A slice whose start depends on data."""
        i = self.pick(lambda s: s[0] >= 4)
        if i is not None:
            n = self.rng.randrange(1, self.shapes[i][0] // 2 + 1)
            self.emit(
                (n, *self.shapes[i][1:]),
                lambda v: lax.dynamic_slice_in_dim(v[i], (v[0].sum() > 0).astype(int) + 1, n, 0),
            )

    def update(self) -> None:
        """With an update that does not read what is updated: XLA:CPU writes in place what it still
        reads (`x.at[i : i + n].set(2 * x[:n])` comes out wrong in plain jax 0.10.2 and 0.12).
        """
        i = self.pick(lambda s: s[0] >= 4)
        if i is not None:
            n = self.shapes[i][0] // 2
            self.emit(
                self.shapes[i],
                lambda v: lax.dynamic_update_slice_in_dim(
                    v[i],
                    jnp.full((n, *self.shapes[i][1:]), v[0].sum() / 8),
                    (v[0].sum() > 0).astype(int),
                    0,
                ),
            )

    def pad(self) -> None:
        i = self.pick(lambda s: s[-1] <= 6)
        s = self.shapes[i] if i is not None else ()
        if s:
            wide = [(0, 0)] * (len(s) - 1) + [(1, 1)]
            self.emit((*s[:-1], s[-1] + 2), lambda v: jnp.pad(v[i], wide))

    def reverse(self) -> None:
        i = self.pick()
        d = self.rng.randrange(len(self.shapes[i]))
        self.emit(self.shapes[i], lambda v: jnp.flip(v[i], d))

    def repeat(self) -> None:
        i = self.pick(lambda s: len(s) <= 2 and s[0] <= 4)
        if i is not None:
            s = self.shapes[i]
            self.emit((2 * s[0], *s[1:]), lambda v: jnp.tile(v[i], (2,) + (1,) * (len(s) - 1)))

    def roll(self) -> None:
        i = self.pick()
        by, d = self.rng.randrange(-3, 4), self.rng.randrange(len(self.shapes[i]))
        self.emit(self.shapes[i], lambda v: jnp.roll(v[i], by, d))

    def middle(self) -> None:
        """Every so many of a stretch."""
        i = self.pick(lambda s: s[0] >= 6)
        if i is not None:
            s, step = self.shapes[i], self.rng.choice([1, 2])
            first = self.rng.randrange(2)
            n = len(range(first, s[0] - 1, step))
            self.emit((n, *s[1:]), lambda v: v[i][first:-1:step])

    def argmax(self) -> None:
        i = self.pick(lambda s: len(s) >= 2)
        if i is not None:
            s = self.shapes[i]
            self.emit(
                s[:-1],
                lambda v: jnp.take_along_axis(v[i], jnp.argmax(v[i], -1)[..., None], -1)[..., 0],
            )

    def batched(self) -> None:
        i = self.pick(lambda s: len(s) == 3)
        if i is not None:
            b, n, _ = self.shapes[i]
            self.emit((b, n, n), lambda v: jnp.einsum("bik,bjk->bij", v[i], v[i]) / 4)

    def narrow(self) -> None:
        """Through integers, which carry no gradient."""
        i = self.pick()
        self.emit(
            self.shapes[i], lambda v: v[i] + ((v[i] * 4).astype("int32") % 3).astype("float32")
        )

    def whiles(self) -> None:
        """A trip count that depends on data."""
        i = self.pick()

        def run(v: list[Any]) -> Any:
            held = lax.stop_gradient(v[i])
            return lax.while_loop(
                lambda c: (c[0] < 3) & (jnp.abs(c[1]).max() > 0.05),
                lambda c: (c[0] + 1, jnp.sin(c[1]) * 0.5),
                (0, held),
            )[1]

        self.emit(self.shapes[i], run)

    def no_iterations(self) -> None:
        """A loop over the layers of a model that has none."""
        i = self.pick()

        def run(v: list[Any]) -> Any:
            rows = jnp.zeros((0, *self.shapes[i]), v[i].dtype)
            return lax.scan(lambda c, x: (jnp.tanh(c * x), None), v[i] * 2, rows)[0]

        self.emit(self.shapes[i], run)

    def reduce_in_scan(self) -> None:
        """Sums inside a loop: nothing rests pending over an iteration's end."""
        i = self.pick(lambda s: len(s) >= 2)
        if i is not None:
            s = self.shapes[i]

            def run(v: list[Any]) -> Any:
                def body(c: Any, x: Any) -> tuple[Any, Any]:
                    return c * 0.5 + jnp.einsum("...k,...k->", x, x), c

                return lax.scan(body, jnp.float32(0), v[i])[1]

            self.emit(s[:1], run)

    def tangent(self) -> None:
        """Tangent of a product of two products: sums of equal parts meet in one addition."""
        i = self.pick(lambda s: len(s) == 2)
        if i is not None:
            j = self.pick(lambda s: s == self.shapes[i])

            def run(v: list[Any]) -> Any:
                left = jnp.tanh(v[i].T @ v[i]) / 4

                def both(x: Any) -> Any:
                    return (x @ left) * (x @ left.T)

                out, tangent = jax.jvp(both, (v[i],), (v[j],))
                return jnp.tanh(tangent + out)

            self.emit(self.shapes[i], run)

    def solve(self) -> None:
        """A batch of triangular systems."""
        i = self.pick(lambda s: len(s) == 3)
        if i is not None:
            s = self.shapes[i]

            def run(v: list[Any]) -> Any:
                gram = jnp.einsum("bik,bjk->bij", v[i], v[i]) / 8 + 2 * jnp.eye(
                    s[1], dtype=v[i].dtype
                )
                root = jnp.linalg.cholesky(gram)
                return lax.linalg.triangular_solve(root, v[i], left_side=True, lower=True)

            self.emit(s, run)

    def refs(self) -> None:
        """Mutable refs, which are read as values."""
        i = self.pick()
        run = ref_form(self.rng, self.shapes[i])
        self.emit(self.shapes[i], lambda v: run(v[i]))


def build(
    seed: int, make: Callable[[int], Builder] = Builder
) -> tuple[Callable[..., Any], list[jax.Array]]:
    """A program and its arguments; results are the last value, a sum and sometimes gradients."""
    builder = make(seed)
    args = [builder.shape() for _ in range(builder.rng.randint(1, 3))]
    for shape in args:
        builder.emit(shape, lambda v: v)
    for _ in range(builder.rng.randint(2, 7)):
        builder.grow()
    steps = builder.steps[len(args) :]

    def forward(*inputs: Any) -> list[Any]:
        values = list(inputs)
        for step in steps:
            values.append(step(values))
        return values

    def program(*inputs: Any) -> Any:
        return forward(*inputs)[-1], forward(*inputs)[len(inputs) - 1 :][-2:]

    def with_gradients(*inputs: Any) -> Any:
        def loss(*xs: Any) -> Any:
            return sum(((x**2).mean() for x in forward(*xs)[len(xs) :]), jnp.float32(0))

        return jax.value_and_grad(loss, argnums=tuple(range(len(inputs))))(*inputs)

    data = np.random.default_rng(seed)
    arrays = [jnp.asarray(data.uniform(-1, 1, s), jnp.float32) for s in args]
    return (with_gradients if builder.rng.random() < 0.5 else program), arrays
