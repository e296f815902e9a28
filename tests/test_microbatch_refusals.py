"""Refusals of microbatches: steps that need the whole batch at once, and bad numbers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import partir_search as ps
from models.catalog import MODELS
from tests.test_microbatch import ABSTRACT, SQUARE, W, X, Y, regression


def normalised(w: Any, x: Any) -> Any:
    def loss(w: Any) -> Any:
        h = x @ w
        return jnp.mean(jnp.tanh((h - h.mean(0)) / jnp.sqrt(h.var(0) + 1e-5)))

    return jax.value_and_grad(loss)(w)


def contrasted(w: Any, x: Any) -> Any:
    def loss(w: Any) -> Any:
        h = x @ w
        return -jnp.mean(jnp.diag(jax.nn.log_softmax(h @ h.T)))

    return jax.value_and_grad(loss)(w)


def normalised_layers(ws: Any, x: Any) -> Any:
    def layer(h: Any, w: Any) -> Any:
        h = h @ w
        return h - h.mean(0), None

    return jax.value_and_grad(lambda ws: (jax.lax.scan(layer, x, ws)[0] ** 2).mean())(ws)


def neighbours(w: Any, x: Any) -> Any:
    return jax.value_and_grad(lambda w: jnp.mean((x @ w) * jnp.roll(x @ w, 1, axis=0)))(w)


def capacity(w: Any, x: Any) -> Any:
    """Gradient of experts that take the first four examples of the batch each."""

    def loss(w: Any) -> Any:
        chosen = jax.nn.one_hot(jnp.argmax(x @ w, -1), w.shape[1])
        place = jnp.cumsum(chosen, axis=0) * chosen
        return jnp.mean((x @ w) * jnp.where((place > 0) & (place <= 4), 1.0, 0.0))

    return jax.value_and_grad(loss)(w)


def ordered(w: Any, x: Any) -> Any:
    def loss(w: Any) -> Any:
        ranked = jnp.sort(x @ w, axis=0)
        return jnp.mean(jnp.exp(-ranked) * (x @ w))

    return jax.value_and_grad(loss)(w)


REFUSED: dict[str, tuple[Any, tuple[Any, ...], str]] = {
    "batch": (
        regression,
        (W, X[:7], Y[:7]),
        r"x, read at .*test_microbatch.py:\d+ .*, has shape .*divide by 2; 6 or 8 would",
    ),
    "no batch": (lambda w: jax.grad(lambda w: (w**2).sum())(w), (W,), "but the train state"),
    "batch normalisation": (
        normalised,
        (W, X),
        r"sub at .*test_microbatch_refusals.py:\d+ \(normalised.* needs all microbatches at once:"
        r" %.*, made by reduce_sum at .*test_microbatch_refusals.py:\d+ \(normalised.*"
        "Normalise over features",
    ),
    "contrastive loss": (contrasted, (W, X), r"needs all microbatches at once: .*contrasted"),
    "inside of a scan": (
        normalised_layers,
        (SQUARE, X),
        r"sub at .*normalised_layers.*: %.*reduce_sum at",
    ),
    "first example": (
        lambda w, x: jax.value_and_grad(lambda w: (x @ w)[:1].sum())(w),
        (W, X),
        "slice at .*needs all microbatches at once",
    ),
    "experts' capacity": (
        capacity,
        (W, X),
        r"cumsum at .*needs all microbatches at once: %convert_element_type, made by .*capacity",
    ),
    "order of the batch": (ordered, (W, X), r"sort at .*needs all microbatches .*: %dot_general"),
    "neighbours": (neighbours, (W, X), "needs all microbatches at once"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_split_is_refused(name: str) -> None:
    fun, args, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(ps.microbatched(fun, 2), *args)


def test_batch_statistics_of_a_network_are_named() -> None:
    entry = MODELS["resnet-tiny"]
    partitioned = ps.auto_partition(ABSTRACT, machine="tpu_v5e", microbatches=2, episodes=1)
    with pytest.raises(ValueError, match=r"%ResNet.stem_norm.*reduce_sum at .*models/resnet.py:"):
        partitioned(entry.step).plan(*entry.abstract_args(8))


def test_bad_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        ps.auto_partition(ABSTRACT, microbatches=0)
