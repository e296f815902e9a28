"""Random programs that read a grid shifted: rolls, differences, padded stencils, updates inside."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Form = Callable[[Any], Any]
Op = Callable[[random.Random, int], Form]  # what is done to a grid along a dim

MODES = ("constant", "wrap", "edge", "reflect", "symmetric")


def _ends(d: int, low: int, high: int) -> Any:
    return tuple((low, high) if e == d else (0, 0) for e in range(2))


def _at(d: int, start: int | None, stop: int | None) -> Any:
    return tuple(slice(start, stop) if e == d else slice(None) for e in range(2))


def roll(rng: random.Random, d: int) -> Form:
    by = rng.choice([1, -1, 2, -2, 5])
    return lambda u: jnp.roll(u, by, d) * 0.5 + u


def difference(rng: random.Random, d: int) -> Form:
    a, b = _at(d, 1, None), _at(d, None, -1)
    after = _ends(d, *rng.choice([(1, 0), (0, 1)]))
    mode = rng.choice(MODES[:3])
    return lambda u: jnp.pad(jnp.sin(u[a] - u[b]), after, mode=mode) + u  # type: ignore[call-overload]


def gradient(rng: random.Random, d: int) -> Form:
    return lambda u: jnp.gradient(u, axis=d)


def padded_slices(rng: random.Random, d: int) -> Form:
    mode, w = rng.choice(MODES), rng.choice([1, 1, 2])
    scale = [rng.uniform(-1, 1) for _ in range(2 * w + 1)]

    def form(u: Any) -> Any:
        n, p = u.shape[d], jnp.pad(u, _ends(d, w, w), mode=mode)  # type: ignore[call-overload]
        return sum(s * p[_at(d, i, i + n)] for i, s in enumerate(scale))

    return form


def padded_convolution(rng: random.Random, d: int) -> Form:
    mode, stride = rng.choice(MODES), rng.choice([1, 1, 1, 2])
    wide = rng.random() < 0.5

    def form(u: Any) -> Any:
        config = ((1, 1), (1, 1)) if wide else _ends(d, 1, 1)
        p = jnp.pad(u, config, mode=mode)[None, :, :, None]  # type: ignore[call-overload]
        window = (3, 3) if wide else ((3, 1) if d == 0 else (1, 3))
        kernel = jnp.tanh(u[: window[0], : window[1]])[:, :, None, None] / 2
        out = lax.conv_general_dilated(
            p, kernel, (stride, stride), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )[0, :, :, 0]
        return jnp.pad(jnp.repeat(jnp.repeat(out, stride, 0), stride, 1), 0)[
            : u.shape[0], : u.shape[1]
        ]

    return form


def pooled(rng: random.Random, d: int) -> Form:
    start, fn = rng.choice([(0.0, lax.add), (-jnp.inf, lax.max)])
    mode = rng.choice(MODES)
    window = tuple(3 if e == d else 1 for e in range(2))

    def form(u: Any) -> Any:
        if mode == "constant":
            p = jnp.pad(u, _ends(d, 1, 1), constant_values=start)
        else:
            p = jnp.pad(u, _ends(d, 1, 1), mode=mode)  # type: ignore[call-overload]
        return lax.reduce_window(p, start, fn, window, (1, 1), "VALID") / 3

    return form


def update(rng: random.Random, d: int) -> Form:
    place = _at(d, *rng.choice([(1, -1), (1, None), (None, -1), (0, 1), (-2, None)]))
    how = rng.choice(["add", "set", "multiply"])
    return lambda u: getattr(u.at[place], how)(jnp.flip(u, d)[place] * 0.5)


def boundary(rng: random.Random, d: int) -> Form:
    def form(u: Any) -> Any:
        first, last = u[_at(d, 0, 1)], u[_at(d, -1, None)]
        middle = (u[_at(d, 2, None)] + u[_at(d, None, -2)]) / 2
        return jnp.concatenate([first * 2, middle, last * 0.3], d)

    return form


def shifted(rng: random.Random, d: int) -> Form:
    """As tokens are for a recurrent model."""
    if rng.random() < 0.5:
        return lambda u: jnp.pad(u, _ends(d, 1, 0))[_at(d, None, -1)] * 0.5 + u
    return lambda u: jnp.concatenate([jnp.zeros_like(u[_at(d, 0, 1)]), u[_at(d, None, -1)]], d)


def red_black(rng: random.Random, d: int) -> Form:
    """Every other element is set to, or combined with, what stands beside it."""
    first = rng.choice([0, 1, 2])
    how = rng.choice(["set", "set", "add", "multiply", "min"])

    def form(u: Any) -> Any:
        n = u.shape[d]
        places = tuple(slice(first, n - 1, 2) if e == d else slice(None) for e in range(2))
        nexts = tuple(slice(first + 1, n, 2) if e == d else slice(None) for e in range(2))
        updated = getattr(u.at[places], how)(jnp.cos(u[nexts]) * 0.5)
        # The gradient of a minimum asks which operand equals the result, and XLA may round the
        # operand differently in the two kernels: no gradient runs through it.
        return u + lax.stop_gradient(updated - u) if how == "min" else updated

    return form


def every(rng: random.Random, d: int) -> Form:
    """Coarse grids and back."""
    step = rng.choice([2, 2, 3])

    def form(u: Any) -> Any:
        fine = tuple(slice(None, None, step) if e == d else slice(None) for e in range(2))
        coarse = u[fine] * 0.5
        return jnp.zeros_like(u).at[fine].add(coarse) + u

    return form


def resized(rng: random.Random, d: int) -> Form:
    method = rng.choice(["linear", "cubic", "nearest", "lanczos3"])
    by = rng.choice([(3, 2), (2, 3), (2, 1), (1, 2), (4, 3), (1, 1)])
    more = rng.choice([0, 2, -2]) if by != (1, 1) else 2

    def form(u: Any) -> Any:
        sizes = [n if e != d else max(n * by[0] // by[1] + more, 4) for e, n in enumerate(u.shape)]
        return jax.image.resize(jax.image.resize(u, sizes, method), u.shape, method)

    return form


def looked_up(rng: random.Random, d: int) -> Form:
    by, mode = rng.choice([1, -1, 2]), rng.choice(["clip", "wrap"])

    def form(u: Any) -> Any:
        places = jnp.arange(u.shape[d]) + by
        ends = jnp.clip(places, 0, u.shape[d] - 1) if mode == "clip" else places % u.shape[d]
        return jnp.take(u, ends, axis=d) * 0.5 + u

    return form


def cumulative(rng: random.Random, d: int) -> Form:
    fn, reverse = rng.choice([lax.cumsum, lax.cummax, lax.cummin]), rng.random() < 0.5
    return lambda u: fn(u, axis=d, reverse=reverse) * 0.1 + u


def selected(rng: random.Random, d: int) -> Form:
    k, largest = rng.choice([0, 0, 1, 2, 3]), rng.random() < 0.5

    def form(u: Any) -> Any:
        if k:
            best = lax.top_k(jnp.moveaxis(u, d, -1), k)[0].sum(-1)
            return u + 0.1 * jnp.expand_dims(best, d)
        at = (jnp.argmax if largest else jnp.argmin)(u, axis=d, keepdims=True)
        return u + 0.1 * jnp.take_along_axis(u, at, d)

    return form


def rollout(rng: random.Random, d: int) -> Form:
    inner = rng.choice((*STENCILS[:5], red_black))(rng, d)
    return lambda u: lax.scan(lambda c, _: (jnp.tanh(inner(c)), None), u, None, length=2)[0]


STENCILS: tuple[Op, ...] = (
    *(roll, difference, padded_slices, padded_convolution, shifted),
    *(gradient, pooled, update, boundary, rollout),
    *(red_black, red_black, every, resized, resized, looked_up, cumulative),
    *(selected, selected),
)


def stencil(seed: int) -> tuple[Callable[..., Any], list[jax.Array]]:
    """A program on a grid and another one, and its arguments; often with its gradient."""
    rng = random.Random(seed)
    shape = rng.choice([8, 12, 16, 24, 32, 48]), rng.choice([6, 8, 16])
    forms = [(rng.choice(STENCILS)(rng, rng.randrange(2))) for _ in range(rng.randint(1, 4))]

    def forward(u: Any, w: Any) -> Any:
        for form in forms:
            u = form(u)
            if u.shape == w.shape:
                u = u + 0.1 * w
        return u

    def loss(u: Any, w: Any) -> Any:
        return (jnp.sin(forward(u, w)) ** 2).mean()

    def program(u: Any, w: Any) -> Any:
        return (forward(u, w),)

    def with_gradients(u: Any, w: Any) -> Any:
        return jax.value_and_grad(loss, argnums=(0, 1))(u, w)

    data = np.random.default_rng(seed)
    arrays = [jnp.asarray(data.uniform(-1, 1, shape), jnp.float32) for _ in range(2)]
    return (with_gradients if rng.random() < 0.6 else program), arrays
