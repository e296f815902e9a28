"""Image autoencoder with a discriminator: two networks and two optimizers in one step."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from experiments.held_out.training import BF16, Made, floats, weights


def make(
    batch: int = 64, side: int = 128, widths: tuple[int, ...] = (64, 128, 256), code: int = 16
) -> Made:
    tx = optax.adam(1e-4, b1=0.5)

    def coder() -> Any:
        ins = (3, *widths[:-1])
        down = [weights(w=(4, 4, a, b), gain=(b,)) for a, b in zip(ins, widths, strict=True)]
        return {"down": down}

    def init() -> Any:
        up = [
            weights(w=(4, 4, a, b), gain=(b,))
            for a, b in zip(widths[::-1], (*widths[-2::-1], 3), strict=True)
        ]
        middle = weights(mean=(1, 1, widths[-1], 2 * code), back=(1, 1, code, widths[-1]))
        model = coder() | {"up": up} | middle
        judge = coder() | weights(last=(3, 3, widths[-1], 1))
        return {"model": model, "judge": judge, "m": tx.init(model), "j": tx.init(judge)}

    def convolve(x: Any, w: Any, stride: int = 1) -> Any:
        layout = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(
            x, w.astype(BF16), (stride, stride), "SAME", dimension_numbers=layout
        )

    def instance_norm(x: Any, gain: Any) -> Any:
        wide = x.astype(jnp.float32)
        mean, variance = wide.mean((1, 2), keepdims=True), wide.var((1, 2), keepdims=True)
        return ((wide - mean) * jax.lax.rsqrt(variance + 1e-5) * (1.0 + gain)).astype(BF16)

    def shrunk(p: Any, x: Any) -> Any:
        for layer in p["down"]:
            x = jax.nn.leaky_relu(instance_norm(convolve(x, layer["w"], 2), layer["gain"]), 0.2)
        return x

    def drawn(p: Any, seed: Any, images: Any) -> tuple[Any, Any]:
        """Images [batch, side, side, 3] from noisy codes, and the codes' divergence."""
        told = convolve(shrunk(p, images.astype(BF16)), p["mean"]).astype(jnp.float32)
        mean, log_scale = jnp.split(told, 2, axis=-1)
        noise = jax.random.normal(jax.random.key(seed[0]), mean.shape)
        x = convolve((mean + jnp.exp(log_scale) * noise).astype(BF16), p["back"])
        for layer in p["up"]:
            x = jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2)
            x = jax.nn.relu(x) if layer is p["up"][0] else x
            x = convolve(x, layer["w"])
            if layer is not p["up"][-1]:
                x = jax.nn.relu(instance_norm(x, layer["gain"]))
        divergence = 0.5 * (mean**2 + jnp.exp(2 * log_scale) - 1.0 - 2 * log_scale)
        return jnp.tanh(x.astype(jnp.float32)), divergence.mean()

    def judged(p: Any, images: Any) -> Any:
        return convolve(shrunk(p, images.astype(BF16)), p["last"]).astype(jnp.float32)

    def model_loss(model: Any, judge: Any, seed: Any, images: Any) -> tuple[Any, Any]:
        found, divergence = drawn(model, seed, images)
        fooled = -judged(judge, found).mean()
        return jnp.abs(found - images).mean() + 0.1 * fooled + 1e-4 * divergence, found

    def judge_loss(judge: Any, real: Any, made: Any) -> Any:
        hinge = jax.nn.relu(1.0 - judged(judge, real)) + jax.nn.relu(1.0 + judged(judge, made))
        return hinge.mean()

    def step(state: Any, seed: Any, images: Any) -> tuple[Any, Any]:
        model, judge = state["model"], state["judge"]
        (value, made), gradient = jax.value_and_grad(model_loss, has_aux=True)(
            model, judge, seed, images
        )
        lost, against = jax.value_and_grad(judge_loss)(judge, images, made)
        updates, m = tx.update(gradient, state["m"], model)
        changes, j = tx.update(against, state["j"], judge)
        new = {"model": optax.apply_updates(model, updates), "m": m}
        return new | {"judge": optax.apply_updates(judge, changes), "j": j}, value + lost

    return step, init, (jax.ShapeDtypeStruct((1,), jnp.uint32), floats(batch, side, side, 3))
