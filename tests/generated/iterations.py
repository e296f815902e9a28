"""Scans whose iterations depend on no earlier one, but for sums and counters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax

if TYPE_CHECKING:
    from tests.programs import Builder


def iterations(self: Builder) -> None:
    """A scan over the rows of a value, that may close over another value, add to carries, count,
    hand a carry on, and hold loops, branches, random numbers and recomputed regions. Some elements
    and results are read by no op.
    """
    i = self.pick(lambda s: len(s) >= 2)
    if i is None:
        return
    shape, rng = self.shapes[i], self.rng
    j = rng.randrange(len(self.shapes))
    forms = rng.sample(["closed", "loop", "branch", "random", "matrix", "nested"], 3)
    remat, reverse, sums, counts, kept = (rng.random() < 0.4 for _ in range(5))
    wanted = rng.choice(["rows", "sum", "both"])
    unread = rng.random() < 0.4

    def run(v: list[Any]) -> Any:
        table = v[j]

        def one(x: Any, n: Any, scale: Any) -> Any:
            y = jnp.sin(x) * scale
            if "closed" in forms:
                y = y + 0.1 * jnp.tanh(table).mean()
            if "matrix" in forms:
                y = jnp.outer(y, jnp.sin(y)).mean(0) if y.ndim == 1 else jnp.sin(y @ y.T) @ y / 8
            if "loop" in forms:
                y = lax.scan(lambda c, r: (0.5 * c + r, c), jnp.zeros_like(y[0]), y)[1]
            if "branch" in forms:
                y = lax.cond(y.sum() > n * 0.1, jnp.tanh, lambda z: z * 0.5, y)
            if "random" in forms:
                key = jax.random.fold_in(jax.random.key(3), n)
                y = y + 0.1 * jax.random.uniform(key, y.shape)
            if "nested" in forms:
                y = lax.map(jnp.cos, y)
            return y

        one = jax.checkpoint(one) if remat else one

        def body(carry: Any, each: Any) -> Any:
            (total, n, scale), (x, more) = carry, each
            y = one(x, n if counts else 2, scale)
            if sums:
                total = total + y / 8 + 0.1 * y
            more = (jnp.exp(more), total) if unread else ()
            return (total, n + 3, scale if kept else 0.75), (y, more)

        first = jnp.zeros(shape[1:]) + (0.1 * table.mean() if kept else 0.0)
        scale = 1 + 0.1 * jnp.tanh(table).mean() if kept else jnp.float32(0.75)
        carry = first, jnp.int32(1), scale
        elements = v[i], 2 * v[i] if unread else ()
        (total, n, _), (rows, _) = lax.scan(body, carry, elements, reverse=reverse)
        rows = rows + 0.001 * n if counts else rows
        if wanted == "rows":
            return rows
        return jnp.broadcast_to(total, shape) + (rows if wanted == "both" else 0.0)

    self.emit(shape, run)
