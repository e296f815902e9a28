"""Blocks of generated models: functions of [batch, length, width] and their parameters."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

Params = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Block:
    """A residual branch.

    Attributes:
      name: kind and choices, ``attention causal kv4``.
      shapes: of the parameters, by name.
      apply: function of parameters, [B, T, D] activations and a random key.
    """

    name: str
    shapes: Mapping[str, tuple[int, ...]]
    apply: Callable[[Params, jax.Array, jax.Array], jax.Array]


Kind = Callable[[random.Random, int, int], Block]
"""Function from a generator, a length and a width to a block."""


def attention(rng: random.Random, length: int, width: int) -> Block:
    """Multi-head attention: masks, grouped heads, soft caps, relative bias, type of scores."""
    head = rng.choice([d for d in (64, 96, 128) if width % d == 0] or [width // 4])
    heads = width // head
    groups = rng.choice([g for g in (1, 2, 4) if heads % g == 0])
    mask = rng.choice(["none", "causal", "window"])
    wide, cap, bias = rng.random() < 0.5, rng.random() < 0.25, rng.random() < 0.25
    shapes: dict[str, tuple[int, ...]] = {
        "q": (width, heads, head),
        "kv": (width, 2, heads // groups, head),
        "out": (heads, head, width),
    }
    if bias:
        shapes["bias"] = (2 * length - 1, heads)

    def apply(p: Params, x: jax.Array, key: jax.Array) -> jax.Array:
        del key
        q = jnp.einsum("btd,dhk->bthk", x, p["q"].astype(x.dtype))
        kv = jnp.einsum("btd,dnhk->nbthk", x, p["kv"].astype(x.dtype))
        k, v = (jnp.repeat(each, groups, axis=2) for each in (kv[0], kv[1]))
        scores = jnp.einsum("bqhk,bshk->bhqs", q, k) / head**0.5
        scores = scores.astype(jnp.float32) if wide else scores
        if cap:
            scores = 30.0 * jnp.tanh(scores / 30.0)
        at = jnp.arange(length)
        if bias:
            near = at[:, None] - at[None, :] + length - 1
            scores = scores + p["bias"][near].transpose(2, 0, 1).astype(scores.dtype)
        if mask != "none":
            seen = at[:, None] >= at[None, :]
            if mask == "window":
                seen &= at[:, None] - at[None, :] < length // 4
            scores = jnp.where(seen, scores, jnp.finfo(scores.dtype).min)
        weights = jax.nn.softmax(scores, axis=-1).astype(x.dtype)
        mixed = jnp.einsum("bhqs,bshk->bqhk", weights, v)
        return jnp.einsum("bqhk,hkd->bqd", mixed, p["out"].astype(x.dtype))

    said = [mask, f"heads{heads}x{head}", f"groups{groups}"]
    said += [word for word, on in (("f32", wide), ("cap", cap), ("bias", bias)) if on]
    return Block(" ".join(["attention", *said]), shapes, apply)


def mlp(rng: random.Random, length: int, width: int) -> Block:
    """Two or three products with an activation, perhaps a bias, perhaps dropout."""
    del length
    inner, gated = width * rng.choice([2, 3, 4]), rng.random() < 0.5
    biased, dropout = rng.random() < 0.5, rng.random() < 0.3
    name, act = rng.choice([("gelu", jax.nn.gelu), ("silu", jax.nn.silu), ("relu", jax.nn.relu)])
    shapes: dict[str, tuple[int, ...]] = {"in": (width, inner), "out": (inner, width)}
    shapes |= {"gate": (width, inner)} if gated else {}
    shapes |= {"b_in": (inner,), "b_out": (width,)} if biased else {}

    def apply(p: Params, x: jax.Array, key: jax.Array) -> jax.Array:
        y = x @ p["in"].astype(x.dtype)
        if biased:
            y = y + p["b_in"].astype(x.dtype)
        y = act(y)
        if gated:
            y = y * (x @ p["gate"].astype(x.dtype))
        y = y @ p["out"].astype(x.dtype)
        if biased:
            y = y + p["b_out"].astype(x.dtype)
        if dropout:
            y = jnp.where(jax.random.bernoulli(key, 0.9, y.shape), y / 0.9, 0)
        return y

    said = [
        name,
        *(w for w, on in (("gated", gated), ("bias", biased), ("dropout", dropout)) if on),
    ]
    return Block(" ".join(["mlp", *said]), shapes, apply)


def convolution(rng: random.Random, length: int, width: int) -> Block:
    """A depthwise causal convolution, or one over narrow channels, with products around."""
    taps, depthwise = rng.choice([3, 4, 7]), rng.random() < 0.6
    inner = width if depthwise else width // 4
    shapes = {
        "in": (width, inner),
        "kernel": (taps, 1 if depthwise else inner, inner),
        "out": (inner, width),
    }
    del length

    def apply(p: Params, x: jax.Array, key: jax.Array) -> jax.Array:
        del key
        y = x @ p["in"].astype(x.dtype)
        y = lax.conv_general_dilated(
            y,
            p["kernel"].astype(x.dtype),
            (1,),
            [(taps - 1, 0)],
            dimension_numbers=("NWC", "WIO", "NWC"),
            feature_group_count=inner if depthwise else 1,
        )
        return jax.nn.silu(y) @ p["out"].astype(x.dtype)

    return Block(f"convolution {'depthwise' if depthwise else 'dense'} {taps}", shapes, apply)


def recurrence(rng: random.Random, length: int, width: int) -> Block:
    """A gated linear recurrence, by an associative scan or a loop over chunks."""
    inner, looped = width // rng.choice([1, 2]), rng.random() < 0.5
    shapes = {"in": (width, 2, inner), "out": (inner, width)}

    def combine(a: Any, b: Any) -> Any:
        return a[0] * b[0], b[0] * a[1] + b[1]

    def apply(p: Params, x: jax.Array, key: jax.Array) -> jax.Array:
        del key
        u, gate = jnp.einsum("btd,dni->nbti", x, p["in"].astype(x.dtype)).astype(jnp.float32)
        decay = jax.nn.sigmoid(gate)
        if not looped:
            _, h = lax.associative_scan(combine, (decay, (1 - decay) * u), axis=1)
        else:
            chunks = length // 32

            def body(carry: jax.Array, at: Any) -> tuple[jax.Array, jax.Array]:
                a, b = at
                cumulative, inside = lax.associative_scan(combine, (a, b), axis=1)
                states = inside + cumulative * carry[:, None]
                return states[:, -1], states

            def split(y: jax.Array) -> jax.Array:
                return y.reshape(y.shape[0], chunks, 32, inner).swapaxes(0, 1)

            start = jnp.zeros((x.shape[0], inner), jnp.float32)
            _, h = lax.scan(body, start, (split(decay), split((1 - decay) * u)))
            h = h.swapaxes(0, 1).reshape(x.shape[0], length, inner)
        return h.astype(x.dtype) @ p["out"].astype(x.dtype)

    return Block(f"recurrence {'chunks' if looped else 'associative'}", shapes, apply)


def mixture(rng: random.Random, length: int, width: int) -> Block:
    """Experts: top-k routing with capacities by one-hot dispatch, or all experts weighted."""
    experts, inner, k = 8, width * rng.choice([1, 2]), rng.choice([1, 2])
    routed = rng.random() < 0.7
    shapes = {
        "router": (width, experts),
        "in": (experts, width, inner),
        "out": (experts, inner, width),
    }
    capacity = k * length * 5 // (4 * experts)

    def apply(p: Params, x: jax.Array, key: jax.Array) -> jax.Array:
        del key
        probs = jax.nn.softmax((x @ p["router"].astype(x.dtype)).astype(jnp.float32))
        weights = {n: p[n].astype(x.dtype) for n in ("in", "out")}
        if not routed:
            y = jax.nn.gelu(jnp.einsum("btd,edi->beti", x, weights["in"]))
            y = y * probs.astype(x.dtype).transpose(0, 2, 1)[..., None]
            return jnp.einsum("beti,eid->btd", y, weights["out"])
        gates, chosen = lax.top_k(probs, k)
        picked = jax.nn.one_hot(chosen, experts)  # [B, T, k, E]
        place = jnp.cumsum(picked.sum(2), axis=1)[:, :, None] * picked - 1
        slots = jax.nn.one_hot(place.astype(int), capacity) * picked[..., None]  # [B, T, k, E, C]
        sent = slots.sum(2).astype(x.dtype)
        kept = jnp.einsum("btkec,btk->btec", slots, gates).astype(x.dtype)
        y = jnp.einsum("btec,btd->ebcd", sent, x)
        y = jax.nn.gelu(jnp.einsum("ebcd,edi->ebci", y, weights["in"]))
        y = jnp.einsum("ebci,eid->ebcd", y, weights["out"])
        return jnp.einsum("btec,ebcd->btd", kept, y)

    return Block(f"mixture {f'top{k}' if routed else 'dense'}", shapes, apply)


KINDS: tuple[Kind, ...] = (attention, mlp, convolution, recurrence, mixture)
