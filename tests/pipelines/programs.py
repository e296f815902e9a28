"""Train steps of scanned layers, small, with what a pipeline must get right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

LAYERS, WIDTH, WORDS, BATCH, LENGTH = 8, 8, 12, 16, 4


def arguments() -> tuple[Any, Any, Any]:
    """Parameters, tokens and a key."""
    keys = jax.random.split(jax.random.key(0), 4)
    params = {
        "embedding": 0.3 * jax.random.normal(keys[0], (WORDS, WIDTH)),
        "layers": {
            "w": 0.3 * jax.random.normal(keys[1], (LAYERS, WIDTH, WIDTH)),
            "b": 0.1 * jax.random.normal(keys[2], (LAYERS, WIDTH)),
        },
    }
    tokens = jax.random.randint(keys[3], (BATCH, LENGTH + 1), 0, WORDS)
    return params, tokens, jax.random.key(7)


def _step(loss: Callable[..., Any], has_aux: bool = False) -> Callable[..., Any]:
    def step(params: Any, tokens: Any, key: Any) -> Any:
        found, grads = jax.value_and_grad(loss, has_aux=has_aux)(params, tokens, key)
        new = jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)
        return new, found

    return step


def _layer(h: Any, p: Any) -> Any:
    return h + jnp.sin(h @ p["w"] + p["b"]), None  # its gradient has equal ops in all jax


def _scores(params: Any, tokens: Any, h: Any) -> Any:
    """Log-probabilities of the next words, with the embedding as head."""
    found = jax.nn.log_softmax(h @ params["embedding"].T)
    return jnp.take_along_axis(found, tokens[:, 1:, None], axis=2)[..., 0]


def tied(params: Any, tokens: Any, key: Any) -> Any:
    """Embedding and head are one matrix."""
    h, _ = jax.lax.scan(_layer, params["embedding"][tokens[:, :-1]], params["layers"])
    return -_scores(params, tokens, h).mean()


def recomputed(params: Any, tokens: Any, key: Any) -> Any:
    """Layers are computed again in the backward pass."""
    h = params["embedding"][tokens[:, :-1]]
    h, _ = jax.lax.scan(jax.checkpoint(_layer), h, params["layers"])
    return -_scores(params, tokens, h).mean()


def dropped(params: Any, tokens: Any, key: Any) -> Any:
    """Dropout after the embedding and in each layer."""
    first, *keys = jax.random.split(key, 1 + LAYERS)

    def layer(h: Any, given: Any) -> Any:
        p, key = given
        h, _ = _layer(h, p)
        return jnp.where(jax.random.bernoulli(key, 0.8, h.shape), h, 0.0), None

    h = params["embedding"][tokens[:, :-1]]
    h = jnp.where(jax.random.bernoulli(first, 0.8, h.shape), h, 0.0)
    h, _ = jax.lax.scan(layer, h, (params["layers"], jnp.stack(keys)))
    return -_scores(params, tokens, h).mean()


def masked(params: Any, tokens: Any, key: Any) -> Any:
    """A mean over some words; every layer reads the mask; results have a row for each example."""
    weights = (tokens[:, 1:] > 2).astype(jnp.float32)

    def layer(h: Any, p: Any) -> Any:
        return _layer(h * (0.5 + 0.5 * weights[..., None]), p)

    h, _ = jax.lax.scan(layer, params["embedding"][tokens[:, :-1]], params["layers"])
    scores = _scores(params, tokens, h) * weights
    return -scores.sum() / weights.sum(), {"scores": scores, "best": h.max()}


def narrow(params: Any, tokens: Any, key: Any) -> Any:
    """Layers in bf16: the casts of the weights are residuals that no microbatch changes."""

    def layer(h: Any, p: Any) -> Any:
        w, b = p["w"].astype(jnp.bfloat16), p["b"].astype(jnp.bfloat16)
        return h + jnp.tanh(h @ w + b), jnp.zeros(())

    h = params["embedding"][tokens[:, :-1]].astype(jnp.bfloat16)
    h, _ = jax.lax.scan(layer, h, params["layers"])
    return -_scores(params, tokens, h.astype(jnp.float32)).mean()


def carried(params: Any, tokens: Any, key: Any) -> Any:
    """Layers pass on two values, and add to a loss of their own."""

    def layer(carry: Any, p: Any) -> Any:
        h, extra = carry
        h, _ = _layer(h, p)
        return (h, extra + 0.01 * (h**2).sum((1, 2))), None

    h = params["embedding"][tokens[:, :-1]]
    (h, extra), _ = jax.lax.scan(layer, (h, jnp.zeros(h.shape[0])), params["layers"])
    return -_scores(params, tokens, h).mean() + extra.mean()


def attending(params: Any, tokens: Any, key: Any) -> Any:
    """Causal attention in every layer, with a mask from outside of the layers."""
    mask = jnp.tril(jnp.ones((LENGTH, LENGTH), bool))

    def layer(h: Any, p: Any) -> Any:
        query, key, value = h @ p["w"], jnp.sin(h), h + p["b"]
        scores = jnp.where(mask, jnp.einsum("bqd,bkd->bqk", query, key), -1e9)
        mixed = jnp.einsum("bqk,bkd->bqd", jax.nn.softmax(scores), value)
        return _layer(h + mixed @ p["w"], p)

    h = params["embedding"][tokens[:, :-1]]
    h, _ = jax.lax.scan(jax.checkpoint(layer), h, params["layers"])
    return -_scores(params, tokens, h).mean()


def scaled(params: Any, tokens: Any, key: Any) -> Any:
    """All layers of the scan have one scale and one matrix."""
    scale, bias = 1.0 + params["embedding"][0], params["embedding"][1:3]

    def layer(h: Any, p: Any) -> Any:
        return _layer(h * scale + jnp.sin(h @ bias.T) @ bias, p)

    h, _ = jax.lax.scan(layer, params["embedding"][tokens[:, :-1]], params["layers"])
    return -_scores(params, tokens, h).mean()


def translated(params: Any, tokens: Any, key: Any) -> Any:
    """An encoder and a decoder; each decoder layer reads the encoder's result, and a mask."""
    half = jax.tree.map(lambda x: x[: LAYERS // 2], params["layers"])
    rest = jax.tree.map(lambda x: x[LAYERS // 2 :], params["layers"])
    embedded = params["embedding"][tokens[:, :-1]]
    encoded, _ = jax.lax.scan(_layer, embedded, half)
    encoded = encoded / (1.0 + (encoded**2).mean(-1, keepdims=True))
    weights = (tokens[:, :-1] > 2).astype(jnp.float32)

    def layer(h: Any, p: Any) -> Any:
        scores = jnp.einsum("bqd,bkd->bqk", h @ p["w"], encoded) * weights[:, None]
        mixed = jnp.einsum("bqk,bkd->bqd", jax.nn.softmax(scores), encoded @ p["w"].T)
        return _layer(h + mixed, p)

    h, _ = jax.lax.scan(layer, jnp.sin(embedded), rest)
    scores = _scores(params, tokens, h)
    return -scores.mean(), {"scores": scores, "norm": (encoded**2).sum(), "first": encoded[:, 0]}


def written_out(owned: bool, shared: bool) -> Callable[..., Any]:
    """Step of an encoder and a decoder written out; all layers of a stack add one bias to scores.

    Args:
      owned: the first layer of a stack computes the bias, after its first product.
      shared: both stacks have one bias, and all layers one scale.
    """

    def attention(x: Any, memory: Any, p: Any, bias: Callable[[], Any]) -> Any:
        scores = jnp.einsum("bqd,bkd->bqk", x @ p["w"], memory) + bias()
        return 0.3 * jnp.einsum("bqk,bkd->bqd", jax.nn.softmax(scores), memory)

    def stack(h: Any, layers: Any, table: Any, scale: Any, memory: Any = None) -> Any:
        made: list[Any] = []

        def bias() -> Any:
            if not made:
                made.append(jnp.sin(table[::2]).T @ table[1::2])
            return made[0]

        if not owned:
            bias()
        for p in layers:
            x = h * scale
            h = h + attention(x, x, p, bias)
            if memory is not None:
                h = h + attention(h, memory, p, lambda: 0.0)
            h, _ = _layer(h, p)
        return h

    def step(params: Any, tokens: Any, key: Any) -> Any:
        layers = [jax.tree.map(lambda x, i=i: x[i], params["layers"]) for i in range(LAYERS)]

        def loss(embedding: Any, layers: Any) -> Any:
            first, second = embedding[:4, :LENGTH], embedding[4:8, :LENGTH]
            scale = 1.0 + embedding[8] if shared else 1.0
            memory = stack(embedding[tokens[:, :-1]], layers[: LAYERS // 2], first, scale)
            last = layers[LAYERS // 2 :]
            h = stack(
                jnp.sin(embedding)[tokens[:, :-1]], last, first if shared else second, scale, memory
            )
            return -_scores({"embedding": embedding}, tokens, h).mean()

        found, grads = jax.value_and_grad(loss, (0, 1))(params["embedding"], layers)
        grads = {"embedding": grads[0], "layers": jax.tree.map(lambda *g: jnp.stack(g), *grads[1])}
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), found

    return step


STEPS = {
    "biased": written_out(owned=False, shared=False),
    "bias of the first layer": written_out(owned=True, shared=False),
    "one bias": written_out(owned=False, shared=True),
    "scaled": _step(scaled),
    "translated": _step(translated, has_aux=True),
    "attending": _step(attending),
    "tied": _step(tied),
    "recomputed": _step(recomputed),
    "dropped": _step(dropped),
    "masked": _step(masked, has_aux=True),
    "narrow": _step(narrow),
    "carried": _step(carried),
}


def residual_mlps(weights: Any, x: Any) -> Any:
    """Gradient step of [d, d], then pairs [d, 4 d], [4 d, d] of weights: layers written out."""

    def loss(weights: Any) -> Any:
        h = x @ weights[0]
        for up, down in zip(weights[1::2], weights[2::2], strict=True):
            h = h + jnp.sin(jnp.sin(h @ up) @ down)
        return (h**2).mean()

    value, grads = jax.value_and_grad(loss)(weights)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, grads), value
