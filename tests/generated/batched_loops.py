"""While loops over batches, of one dim or several, whose examples stop each by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax

if TYPE_CHECKING:
    from tests.programs import Builder


def batched_loop(self: Builder) -> None:
    """A loop under `jax.vmap` over some dims of a value, once or nested, that may close over
    another value in its condition or its body.
    """
    i = self.pick(lambda s: len(s) >= 2)
    if i is None:
        return
    shape, rng = self.shapes[i], self.rng
    dims = [rng.randrange(len(shape) - n) for n in range(rng.randint(1, len(shape)))]
    j = rng.randrange(len(self.shapes))
    asked, inner, closed = rng.random() < 0.3, rng.random() < 0.3, rng.random() < 0.4
    own = rng.random() < 0.3

    def run(v: list[Any]) -> Any:
        table = lax.stop_gradient(v[j])

        def one(x: Any) -> Any:
            least = 0.02 + 0.05 * jnp.tanh(jnp.abs(table).max()) if asked else 0.05
            times = 1 + (jnp.abs(x).max() * 5).astype(int) % 3 if own else 4

            def body(carry: Any) -> Any:
                n, y = carry
                y = jnp.sin(y) * 0.5
                if closed:
                    y = y + 0.01 * jnp.tanh(table).max()
                if inner:
                    y = lax.while_loop(lambda z: jnp.abs(z).max() > 0.3, lambda z: z * 0.7, y)
                return n + 1, y

            return lax.while_loop(
                lambda c: (c[0] < times) & (jnp.abs(c[1]).max() > least), body, (0, x)
            )[1]

        fn = one
        for dim in reversed(dims):
            fn = jax.vmap(fn, in_axes=dim, out_axes=dim)
        return fn(lax.stop_gradient(v[i]))

    self.emit(shape, run)
