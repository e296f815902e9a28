"""Recurrent policy on images: convolutions, a gated recurrent unit, clipped PPO losses."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from experiments.held_out.training import BF16, Made, dense, floats, ids, trained, weights


def make(
    batch: int = 128,
    steps: int = 32,
    side: int = 64,
    widths: tuple[int, ...] = (32, 64, 64),
    d: int = 512,
    actions: int = 18,
) -> Made:
    layout = ("NHWC", "HWIO", "NHWC")
    flat = (side // 8) ** 2 * widths[-1]

    def init() -> Any:
        ins = (4, *widths[:-1])
        convolutions = [
            weights(w=(4, 4, i, o), bias=(o,)) for i, o in zip(ins, widths, strict=True)
        ]
        return {"convolutions": convolutions} | weights(
            embed=(flat, d), gates=(d, 3 * d), back=(d, 3 * d), policy=(d, actions), value=(d, 1)
        )

    def recurrent(p: Any, inputs: Any) -> Any:
        """States [steps, batch, d] of a gated recurrent unit over inputs [steps, batch, 3 d]."""

        def step(h: Any, x: Any) -> tuple[Any, Any]:
            past = dense(h, p["back"])
            (rx, zx, nx), (rh, zh, nh) = jnp.split(x, 3, axis=-1), jnp.split(past, 3, axis=-1)
            z, n = jax.nn.sigmoid(zx + zh), jnp.tanh(nx + jax.nn.sigmoid(rx + rh) * nh)
            h = (1 - z) * n + z * h
            return h, h

        return jax.lax.scan(step, jnp.zeros((batch, d), BF16), inputs)[1]

    def loss(params: Any, frames: Any, chosen: Any, before: Any, gains: Any, returns: Any) -> Any:
        x = (frames.reshape(steps * batch, side, side, 4) / 255.0).astype(BF16)
        for p in params["convolutions"]:
            x = jax.lax.conv_general_dilated(
                x, p["w"].astype(BF16), (2, 2), "SAME", dimension_numbers=layout
            )
            x = jax.nn.leaky_relu(x + p["bias"].astype(BF16))
        x = jax.nn.relu(dense(x.reshape(steps, batch, flat), params["embed"]))
        h = recurrent(params, dense(x, params["gates"]))
        log_p = jax.nn.log_softmax(dense(h, params["policy"]).astype(jnp.float32))
        taken = jnp.take_along_axis(log_p, chosen[..., None], axis=-1)[..., 0]
        ratio = jnp.exp(taken - before)
        gained = jnp.minimum(ratio * gains, jnp.clip(ratio, 0.8, 1.2) * gains).mean()
        value = dense(h, params["value"])[..., 0].astype(jnp.float32)
        entropy = -(jnp.exp(log_p) * log_p).sum(-1).mean()
        return -gained + 0.5 * jnp.square(value - returns).mean() - 0.01 * entropy

    told = [floats(steps, batch) for _ in range(3)]
    tx = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(3e-4))
    frames = floats(steps, batch, side, side, 4)
    return trained(loss, init, tx, frames, ids(steps, batch), *told)
