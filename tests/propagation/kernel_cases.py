"""Cases of Pallas kernels, interpreted."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from tests.propagation.samples import Case, floats

BLOCK = 4


def _called(kernel: Any, grid: tuple[int, ...], ins: list[Any], out: Any, *args: Any) -> Any:
    """A kernel's result, of the shape and the blocks of `out`."""
    shape, spec = out
    call = pl.pallas_call(
        kernel,
        grid=grid,
        in_specs=ins,
        out_specs=spec,
        out_shape=jax.ShapeDtypeStruct(shape, args[0].dtype),
        interpret=True,
    )
    return call(*args)


def rows(x: Any) -> Any:
    """Softmax over rows, in blocks of rows."""

    def kernel(x_ref: Any, out_ref: Any) -> None:
        out_ref[...] = jax.nn.softmax(x_ref[...], -1)

    spec = pl.BlockSpec((BLOCK, x.shape[1]), lambda i: (i, 0))
    return _called(kernel, (x.shape[0] // BLOCK,), [spec], (x.shape, spec), x)


def product(x: Any, w: Any) -> Any:
    """Product of matrices, summed over the last grid dim in order."""

    def kernel(x_ref: Any, w_ref: Any, out_ref: Any) -> None:
        @pl.when(pl.program_id(2) == 0)
        def _() -> None:
            out_ref[...] = jnp.zeros_like(out_ref)

        out_ref[...] += x_ref[...] @ w_ref[...]

    (m, k), n = x.shape, w.shape[1]
    ins = [
        pl.BlockSpec((BLOCK, BLOCK), lambda i, j, k: (i, k)),
        pl.BlockSpec((BLOCK, BLOCK), lambda i, j, k: (k, j)),
    ]
    out = (m, n), pl.BlockSpec((BLOCK, BLOCK), lambda i, j, k: (i, j))
    return _called(kernel, (m // BLOCK, n // BLOCK, k // BLOCK), ins, out, x, w)


def attention(q: Any, k: Any, v: Any) -> Any:
    """Attention of each example and head; two heads share keys and values."""

    def kernel(q_ref: Any, k_ref: Any, v_ref: Any, out_ref: Any) -> None:
        scores = q_ref[...] @ k_ref[...].T
        out_ref[...] = jax.nn.softmax(scores, -1) @ v_ref[...]

    b, h, t, d = q.shape
    one = pl.BlockSpec((None, None, t, d), lambda i, j: (i, j, 0, 0))
    shared = pl.BlockSpec((None, None, t, d), lambda i, j: (i, j // 2, 0, 0))
    return _called(kernel, (b, h), [one, shared, shared], (q.shape, one), q, k, v)


KERNEL_CASES: dict[str, Case] = {
    "kernel_attention": (
        "pallas_call",
        attention,
        (floats(4, 4, 3, 2), floats(4, 2, 3, 2), floats(4, 2, 3, 2)),
    ),
    "kernel_of_examples": ("pallas_call", jax.vmap(rows), (floats(2, 16, 3),)),
    "kernel_product": ("pallas_call", product, (floats(8, 8), floats(8, 16))),
    "kernel_rows": ("pallas_call", rows, (floats(16, 6),)),
}
