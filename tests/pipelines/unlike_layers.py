"""Train steps of layers with losses of their own, without gradients, or with one set of weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from tests.pipelines.programs import LAYERS, arguments

Loss = Callable[..., Any]


def _layer(h: Any, p: Any) -> Any:
    return h + jnp.sin(jnp.tanh(h @ p["w"]) @ p["w"] + p["b"])


def unlike_arguments(name: str) -> tuple[Any, Any, Any]:
    """Arguments of a step; parameters of layers written out are arrays of their own."""
    params, tokens, key = arguments()
    if name not in SCANNED:
        rows = [jax.tree.map(lambda x, i=i: x[i], params["layers"]) for i in range(LAYERS)]
        params["layers"] = rows[:1] if name.startswith("one layer") else rows
    return params, tokens, key


def _entry(params: Any, tokens: Any) -> Any:
    return params["embedding"][tokens[:, :-1]]


def _head(params: Any, tokens: Any, h: Any) -> Any:
    """Cross entropy, with the embedding as head."""
    found = jax.nn.log_softmax(h @ params["embedding"].T)
    return -jnp.take_along_axis(found, tokens[:, 1:, None], axis=2).mean()


def exits(params: Any, tokens: Any) -> Any:
    """A cross entropy after each layer, all with one head."""
    h, total = _entry(params, tokens), 0.0
    for p in params["layers"]:
        h = _layer(h, p)
        total += _head(params, tokens, h)
    return total / LAYERS, {}


def experts(params: Any, tokens: Any) -> Any:
    """A loss of each layer in a list, weighted by layer, returned too."""
    h, found = _entry(params, tokens), []
    for p in params["layers"]:
        h = _layer(h, p)
        found.append((jax.nn.softmax(h) ** 2).sum(-1).mean())
    weights = jnp.arange(1.0, LAYERS + 1)
    return _head(params, tokens, h) + (weights * jnp.stack(found)).sum(), jnp.stack(found)


def mixture(params: Any, tokens: Any) -> Any:
    """The states of all layers, mixed by learned weights."""
    h, states = _entry(params, tokens), list[Any]()
    for p in params["layers"]:
        h = _layer(h, p)
        states.append(h)
    weights = jax.nn.softmax(params["embedding"][0])
    return _head(params, tokens, sum(w * x for w, x in zip(weights, states, strict=True))), {}


def statistics(params: Any, tokens: Any) -> Any:
    """Rows of a scan over layers: a mean of squares of each layer is in the loss."""

    def layer(h: Any, p: Any) -> Any:
        h = _layer(h, p)
        return h, (h**2).mean((1, 2))

    h, norms = jax.lax.scan(layer, _entry(params, tokens), params["layers"])
    return _head(params, tokens, h) + norms.mean(), norms.mean(1)


def gates(params: Any, tokens: Any) -> Any:
    """Rows of all layers computed from the tokens before the layers, with a gradient."""
    rows = jnp.sin(params["embedding"][:LAYERS, 0][:, None] * tokens[None, :, 0])

    def layer(h: Any, given: Any) -> Any:
        p, row = given
        return h + jnp.tanh(h @ p["w"]) * row[:, None, None], None

    h, _ = jax.lax.scan(layer, _entry(params, tokens), (params["layers"], rows))
    return _head(params, tokens, h), {}


def skipped(params: Any, tokens: Any) -> Any:
    """The head reads the embedded tokens besides the last layer's result."""
    first = _entry(params, tokens)
    h = first
    for p in params["layers"]:
        h = _layer(h, p)
    return _head(params, tokens, h * jnp.tanh(first)), {}


def one_layer(params: Any, tokens: Any) -> Any:
    """All layers have the weights of the first, written out."""
    h, p = _entry(params, tokens), params["layers"][0]
    for _ in range(LAYERS):
        h = _layer(h, p)
    return _head(params, tokens, h), {}


def one_layer_scanned(params: Any, tokens: Any) -> Any:
    """The same in a scan over nothing."""
    p = params["layers"][0]
    h, _ = jax.lax.scan(
        lambda h, _: (_layer(h, p), None), _entry(params, tokens), None, length=LAYERS
    )
    return _head(params, tokens, h), {}


def two_stacks(params: Any, tokens: Any) -> Any:
    """An encoder and a decoder with a loss of each layer; the decoder's layers have no weights
    before the last of the encoder has run.
    """
    half = jax.tree.map(lambda x: x[: LAYERS // 2], params["layers"])
    rest = jax.tree.map(lambda x: x[LAYERS // 2 :], params["layers"])

    def layer(h: Any, p: Any) -> Any:
        h = _layer(h, p)
        return h, (h**2).mean((1, 2))

    h, first = jax.lax.scan(layer, _entry(params, tokens), half)
    h = jnp.sin(h) + jnp.cos(h).sum(1, keepdims=True)
    h, second = jax.lax.scan(layer, h, rest)
    return _head(params, tokens, h) + first.mean() * 0.5 + second.mean(), second.mean(1)


def _step(loss: Loss, trained: Sequence[str] = ("embedding", "w", "b")) -> Callable[..., Any]:
    """Step of gradient descent on some of the parameters."""

    def step(params: Any, tokens: Any, key: Any) -> Any:
        leaves, tree = jax.tree_util.tree_flatten_with_path(params)
        own = [path[-1].key in trained for path, _ in leaves]

        def of(found: Sequence[Any]) -> Any:
            values = iter(found)
            every = [next(values) if o else x for o, (_, x) in zip(own, leaves, strict=True)]
            return loss(jax.tree.unflatten(tree, every), tokens)

        old = [x for o, (_, x) in zip(own, leaves, strict=True) if o]
        (value, further), grads = jax.value_and_grad(of, has_aux=True)(old)
        new = iter([x - 0.1 * g for x, g in zip(old, grads, strict=True)])
        every = [next(new) if o else x for o, (_, x) in zip(own, leaves, strict=True)]
        return jax.tree.unflatten(tree, every), value, further

    return step


def frozen(params: Any, tokens: Any) -> Any:
    """Layers written out; trained in a part, the first layer has no gradient of its operand."""
    h = _entry(params, tokens)
    for p in params["layers"]:
        h = _layer(h, p)
    return _head(params, tokens, h), {}


SCANNED = ("statistics", "gates", "two stacks")

UNLIKE = {
    "exits": _step(exits),
    "experts": _step(experts),
    "mixture": _step(mixture),
    "statistics": _step(statistics),
    "gates": _step(gates),
    "skipped": _step(skipped),
    "one layer": _step(one_layer),
    "one layer, scanned": _step(one_layer_scanned),
    "frozen": _step(frozen, ("b",)),
    "two stacks": _step(two_stacks),
}
