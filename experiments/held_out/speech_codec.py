"""Speech codec: strided 1-D convolutions, residual vector quantisation, losses of spectra."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from experiments.held_out.training import BF16, Made, floats, trained, weights


def make(
    batch: int = 64,
    length: int = 16_384,
    widths: tuple[int, ...] = (64, 128, 256),
    codes: int = 1024,
    rounds: int = 4,
    window: int = 256,
) -> Made:
    layout = ("NWC", "WIO", "NWC")

    def init() -> Any:
        outs = (*widths[1:], widths[-1])
        down = [
            weights(a=(7, i, i), b=(1, i, i), w=(8, i, o))
            for i, o in zip(widths, outs, strict=True)
        ]
        up = [
            weights(w=(8, o, i), a=(7, i, i), b=(1, i, i))
            for i, o in zip(widths, outs, strict=True)
        ]
        books = [weights(codes=(codes, widths[-1])) for _ in range(rounds)]
        ends = weights(first=(7, 1, widths[0]), last=(7, widths[0], 1))
        return {"down": down, "up": up[::-1], "books": books} | ends

    def convolve(x: Any, w: Any, stride: int = 1) -> Any:
        return jax.lax.conv_general_dilated(
            x, w.astype(BF16), (stride,), "SAME", dimension_numbers=layout
        )

    def residual(p: Any, x: Any) -> Any:
        return x + convolve(jax.nn.elu(convolve(jax.nn.elu(x), p["a"])), p["b"])

    def quantised(books: Any, z: Any) -> tuple[Any, Any]:
        """Straight-through sums of nearest codes of z [..., d], and the commitment loss."""
        left, total, cost = z.astype(jnp.float32), jnp.zeros(z.shape), jnp.zeros(())
        for book in books:
            table = book["codes"]
            scores = left.astype(BF16) @ table.T.astype(BF16)
            apart = jnp.square(table).sum(-1) - 2.0 * scores.astype(jnp.float32)
            nearest = table[jnp.argmin(apart, axis=-1)]
            cost += jnp.square(jax.lax.stop_gradient(nearest) - left).mean()
            cost += jnp.square(nearest - jax.lax.stop_gradient(left)).mean()
            left, total = left - jax.lax.stop_gradient(nearest), total + nearest
        wide = z.astype(jnp.float32)
        return (wide + jax.lax.stop_gradient(total - wide)).astype(BF16), cost

    def spectrum(x: Any) -> Any:
        """Log magnitudes of x [batch, length] in windows."""
        at = jnp.arange(window)
        angles = -2.0 * jnp.pi * at[:, None] * at[: window // 2] / window
        parts = x.reshape(batch, -1, window) * jnp.hanning(window)
        power = jnp.square(parts @ jnp.cos(angles)) + jnp.square(parts @ jnp.sin(angles))
        return jnp.log(power + 1e-5)

    def loss(params: Any, waves: Any) -> Any:
        x = convolve(waves[..., None].astype(BF16), params["first"])
        for p in params["down"]:
            x = convolve(jax.nn.elu(residual(p, x)), p["w"], 4)
        x, cost = quantised(params["books"], x)
        for p in params["up"]:
            x = jax.lax.conv_transpose(
                jax.nn.elu(x), p["w"].astype(BF16), (4,), "SAME", dimension_numbers=layout
            )
            x = residual(p, x)
        found = jnp.tanh(convolve(jax.nn.elu(x), params["last"])[..., 0].astype(jnp.float32))
        apart = jnp.abs(found - waves).mean() + jnp.abs(spectrum(found) - spectrum(waves)).mean()
        return apart + 0.25 * cost

    return trained(loss, init, optax.adamw(3e-4), floats(batch, length))
