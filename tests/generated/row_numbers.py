"""Look-ups and updates at the number of each row: ``x[jnp.arange(n), columns]``."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


def row_numbers(self: Any) -> None:
    """One element, or one slice, of each row read or updated at a column that depends on data."""
    i = self.pick(lambda s: len(s) >= 2)
    if i is None:
        return
    n, m, *rest = self.shapes[i]
    form = self.rng.choice(["read", "several", "vmap", "set", "add", "search"])

    def columns(v: list[Any]) -> Any:
        return (jnp.abs(v[i].reshape(n, -1)[:, 0]) * 5).astype(int) % m

    def several(v: list[Any]) -> Any:
        return v[i][jnp.arange(n)[:, None], jnp.stack([columns(v), 0 * columns(v)], 1)]

    def update(v: list[Any]) -> Any:
        at = v[i].at[jnp.arange(n), columns(v)]
        return (at.set if form == "set" else at.add)(jnp.ones((n, *rest)) * v[0].sum() / 8)

    def search(v: list[Any]) -> Any:
        def visit(tree: Any, _: Any) -> tuple[Any, Any]:
            best = jnp.argmax(tree.reshape(n, m, -1)[..., 0], 1)
            found = tree[jnp.arange(n), best]
            return tree.at[jnp.arange(n), best].add(-0.5), found

        return lax.scan(visit, lax.stop_gradient(v[i]), None, length=2)[1]

    if form == "read":
        self.emit((n, *rest), lambda v: v[i][jnp.arange(n), columns(v)])
    elif form == "several":
        self.emit((n, 2, *rest), several)
    elif form == "vmap":
        self.emit((n, *rest), lambda v: jax.vmap(lambda x, c: x[c])(v[i], columns(v)))
    elif form == "search":
        self.emit((2, n, *rest), search)
    else:
        self.emit((n, m, *rest), update)
