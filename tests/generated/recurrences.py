"""Scans whose iterations depend on earlier ones, and products that wait for none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax

if TYPE_CHECKING:
    from tests.programs import Builder


def recurrence(self: Builder) -> None:
    """A scan over the rows of a value with a state, products with weights made of another value,
    sums of products in a carry, and outputs that no iteration reads; or the gradient of the scan.
    """
    i = self.pick(lambda s: len(s) >= 2)
    if i is None:
        return
    shape, rng = self.shapes[i], self.rng
    j = rng.randrange(len(self.shapes))
    width = rng.choice([2, 3, 4])
    forms = rng.sample(
        ["total", "head", "masked", "transposed", "twice", "scaled", "bias", "seen"], 3
    )
    reverse, unroll = rng.random() < 0.4, rng.choice([1, 1, 2])
    remat, gradient, grouped = (rng.random() < p for p in (0.2, 0.6, 0.3))

    def weights(v: list[Any], rows: int, columns: int) -> Any:
        grid = jnp.arange(float(rows * columns)).reshape(rows, columns)
        return jnp.sin(grid + v[j].mean()) / rows

    def run(v: list[Any], x: Any) -> Any:
        into, own = weights(v, shape[-1], width), weights(v, width, width)

        def cell(carry: Any, row: Any) -> Any:
            h, total = carry
            seen = row @ into
            if grouped and row.ndim == 2:  # a matrix for each row
                seen = jnp.einsum("bd,bdh->bh", row, jnp.stack([into] * row.shape[0]))
            turned = "transposed" in forms
            before = jnp.einsum("hk,...k->...h", own, h) if turned else h @ own
            new = jnp.tanh(seen + before + (own[0] if "bias" in forms else 0.0))
            if "twice" in forms:
                new = jnp.sin((0.5 * row) @ into + new)
            if "masked" in forms:
                new = jnp.where(row[..., :1] > 0, new, h)
            if "total" in forms:
                flat = row.reshape(-1, shape[-1])
                part = h.reshape(-1, width).T @ flat
                total = total + (0.5 * part.T if "scaled" in forms else part.T)
            if "seen" in forms:  # a product stacked by the scan and added up
                total = total + (row.reshape(-1, shape[-1]).T @ seen.reshape(-1, width))
            out = jnp.tanh(new) @ own if "head" in forms else new
            return (new, total), (out, seen if "seen" in forms else out)

        first = jnp.zeros((*shape[1:-1], width)), jnp.zeros((shape[-1], width))
        cell = jax.checkpoint(cell) if remat else cell
        (h, total), (rows, more) = lax.scan(cell, first, x, reverse=reverse, unroll=unroll)
        return h.sum() + jnp.sin(total).sum() + (rows**2).sum() + jnp.cos(more).sum()

    def gradients(v: list[Any]) -> Any:
        def loss(other: Any, x: Any) -> Any:
            return run([*v[:j], other, *v[j + 1 :]], x)

        other, own = jax.grad(loss, (0, 1))(v[j], v[i])
        return own + other.sum()

    if gradient:
        self.emit(shape, gradients)
    else:
        self.emit((1,), lambda v: run(v, v[i])[None])
