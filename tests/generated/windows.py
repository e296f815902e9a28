"""Convolutions and pools of a value, methods of `tests.programs.Builder`."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax

if TYPE_CHECKING:
    from tests.programs import Builder


def conv(self: Builder) -> None:
    """[batch, pixels, features] with a kernel of 3 pixels made of the value itself."""
    i = self.pick(lambda s: len(s) == 3 and s[1] >= 3)
    if i is not None:
        b, n, f = self.shapes[i]
        grouped = self.rng.random() < 0.3

        def run(v: list[Any]) -> Any:
            kernel = jnp.tanh(v[i][0, :3, :, None] * jnp.linspace(0.1, 1, f, dtype=v[i].dtype))
            kernel = kernel[:, :1] if grouped else kernel
            return lax.conv_general_dilated(
                v[i], kernel, (1,), "SAME",
                dimension_numbers=("NWC", "WIO", "NWC"),
                feature_group_count=f if grouped else 1,
            )  # fmt: skip

        self.emit((b, n, f), run)


def pool(self: Builder) -> None:
    i = self.pick(lambda s: len(s) == 3 and s[1] % 2 == 0)
    if i is not None:
        b, n, f = self.shapes[i]
        window = (1, 2, 1)
        self.emit(
            (b, n // 2, f),
            lambda v: lax.reduce_window(v[i], 0.0, lax.add, window, window, "VALID") / 2,
        )


def strided_conv(self: Builder) -> None:
    """Strides, dilation and padding; its gradients dilate the image."""
    i = self.pick(lambda s: len(s) == 3 and s[1] >= 3)
    if i is not None:
        b, n, f = self.shapes[i]
        stride, spread = self.rng.choice([1, 2, 3]), self.rng.choice([1, 2])
        low, high = self.rng.randrange(3), self.rng.randrange(3)
        out = (n + low + high - 2 * spread - 1) // stride + 1
        if out < 1:
            return

        def run(v: list[Any]) -> Any:
            kernel = jnp.tanh(v[i][0, :3, :, None] * jnp.linspace(0.1, 1, f, dtype=v[i].dtype))
            return lax.conv_general_dilated(
                v[i], kernel, (stride,), [(low, high)], rhs_dilation=(spread,),
                dimension_numbers=("NWC", "WIO", "NWC"),
            )  # fmt: skip

        self.emit((b, out, f), run)


def overlapping_pool(self: Builder) -> None:
    i = self.pick(lambda s: len(s) == 3 and s[1] >= 3)
    if i is not None:
        b, n, f = self.shapes[i]
        stride = self.rng.choice([1, 2])
        start, fn = self.rng.choice([(0.0, lax.add), (-jnp.inf, lax.max)])
        self.emit(
            (b, -(-n // stride), f),
            lambda v: lax.reduce_window(
                v[i], start, fn, (1, 3, 1), (1, stride, 1), "SAME"
            ) / 3,
        )  # fmt: skip


def frames(self: Builder) -> None:
    """Windows along the dim after the first, at computed places: read, written or added."""
    i = self.pick(lambda s: len(s) >= 2 and s[1] >= 3)
    if i is None:
        return
    b, n, *rest = self.shapes[i]
    form = self.rng.choice(["read", "write", "add", "set"])

    def places(v: list[Any]) -> Any:
        return (jnp.abs(v[i].reshape(b, -1)[0, :2]) * 5).astype(int) % (n + 1)

    def read(v: list[Any]) -> Any:
        return jax.vmap(lambda at: lax.dynamic_slice_in_dim(v[i], at, 2, 1))(places(v))

    def write(v: list[Any]) -> Any:
        new = jnp.ones((b, 2, *rest), v[i].dtype) * v[0].sum() / 8
        one = functools.partial(lax.dynamic_update_slice_in_dim, v[i], new, axis=1)
        return jax.vmap(lambda at: one(at))(places(v))

    def scattered(v: list[Any]) -> Any:
        """Windows over the whole first dim, as the gradient of `read` has."""
        numbers = lax.ScatterDimensionNumbers(
            update_window_dims=tuple(range(1, 3 + len(rest))),
            inserted_window_dims=(),
            scatter_dims_to_operand_dims=(0, 1),
        )
        at = places(v)
        indices = jnp.stack([0 * at, at], 1)[: 2 if form == "add" else 1]
        updates = jnp.ones((len(indices), b, 2, *rest), v[i].dtype) * v[0].sum() / 8
        scatter = lax.scatter_add if form == "add" else lax.scatter
        return scatter(v[i], indices, updates, numbers, mode=lax.GatherScatterMode.CLIP)

    if form in ("read", "write"):
        run, size = (read, 2) if form == "read" else (write, n)
        self.emit((2, b, size, *rest), run)
    else:
        self.emit((b, n, *rest), scattered)
