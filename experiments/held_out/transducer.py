"""Speech transducer: an LSTM of labels, a joint network over frames and labels, and the lattice."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from experiments.held_out.training import (
    BF16,
    Made,
    dense,
    floats,
    ids,
    layer_norm,
    trained,
    weights,
)


def make(
    batch: int = 32,
    frames: int = 128,
    labels: int = 32,
    bands: int = 320,
    d: int = 512,
    layers: int = 3,
    vocab: int = 1024,
) -> Made:
    def init() -> Any:
        layer = {"norm": (d,), "shift": (d,), "time": (9, d), "up": (d, 4 * d), "down": (4 * d, d)}
        return {
            "first": weights(w=(bands, d))["w"],
            "layers": [weights(**layer) for _ in range(layers)],
            **weights(table=(vocab, d), gates=(2 * d, 4 * d), bias=(4 * d,)),
            **weights(from_sound=(d, d), from_text=(d, d), out=(d, vocab)),
        }

    def encoded(params: Any, sound: Any) -> Any:
        x = dense(sound.astype(BF16), params["first"])
        for p in params["layers"]:
            h = layer_norm(x, p["norm"], p["shift"])
            padded = jnp.pad(h, ((0, 0), (4, 4), (0, 0)))
            taps = p["time"].astype(BF16)
            h = sum(padded[:, k : k + frames] * taps[k] for k in range(9))
            x = x + dense(jax.nn.silu(dense(h, p["up"])), p["down"])
        return x

    def predicted(params: Any, tokens: Any) -> Any:
        """States [batch, labels + 1, d] of an LSTM, the first before any label."""
        x = params["table"][tokens].astype(BF16)
        x = jnp.pad(x, ((0, 0), (1, 0), (0, 0)))

        def step(carry: Any, at: Any) -> tuple[Any, Any]:
            h, c = carry
            y = dense(jnp.concatenate([at, h], axis=-1), params["gates"]).astype(jnp.float32)
            i, f, g, o = jnp.split(y + params["bias"], 4, axis=-1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = (jax.nn.sigmoid(o) * jnp.tanh(c)).astype(BF16)
            return (h, c), h

        start = jnp.zeros((batch, d), BF16), jnp.zeros((batch, d))
        return jax.lax.scan(step, start, x.swapaxes(0, 1))[1].swapaxes(0, 1)

    def lattice(blank: Any, label: Any) -> Any:
        """Log-probability [batch] of all paths; blank [b, t, u + 1], label [b, t, u]."""

        def column(before: Any, at: Any) -> tuple[Any, None]:
            blanks, along = at  # of the frame before, of this frame
            entered = before + blanks

            def up(below: Any, here: Any) -> tuple[Any, Any]:
                value = jnp.logaddexp(here[0], below + here[1])
                return value, value

            first = entered[:, 0]
            rest = jax.lax.scan(up, first, (entered[:, 1:].T, along.T))[1]
            return jnp.concatenate([first[None], rest]).T, None

        first = jnp.pad(jnp.cumsum(label[:, 0], axis=-1), ((0, 0), (1, 0)))
        moved = blank[:, :-1].swapaxes(0, 1), label[:, 1:].swapaxes(0, 1)
        return jax.lax.scan(column, first, moved)[0][:, -1] + blank[:, -1, -1]

    def loss(params: Any, sound: Any, tokens: Any) -> Any:
        a = dense(encoded(params, sound), params["from_sound"])
        b = dense(predicted(params, tokens), params["from_text"])
        joint = jnp.tanh(a[:, :, None] + b[:, None])  # [batch, frames, labels + 1, d]
        scores = jax.nn.log_softmax(dense(joint, params["out"]).astype(jnp.float32))
        wanted = jnp.broadcast_to(tokens[:, None, :, None], (batch, frames, labels, 1))
        label = jnp.take_along_axis(scores[:, :, :-1], wanted, axis=-1)[..., 0]
        return -lattice(scores[..., 0], label).mean()

    sound = floats(batch, frames, bands)
    return trained(loss, init, optax.adam(1e-3), sound, ids(batch, labels))
