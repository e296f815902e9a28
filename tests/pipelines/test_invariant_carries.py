"""Keys and counters that layers pass on: rows of layers, known before all microbatches."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from partir_search.passes.pipeline.module import stage_carries
from tests.pipelines.programs import LAYERS, WIDTH, arguments
from tests.pipelines.test_lockstep import in_parts, pipeline, results_of
from tests.support import assert_same


def layer(h: Any, p: Any, key: Any) -> tuple[Any, Any]:
    """A layer that splits a key, and the rest of the key."""
    key, own = jax.random.split(key)
    h = h + jnp.sin(h @ p["w"] + p["b"])
    return jnp.where(jax.random.bernoulli(own, 0.8, h.shape), h, 0.0), key


def written_out(params: Any, h: Any, key: Any) -> Any:
    """The last layer's rest of the key is read by nothing."""
    for i in range(LAYERS):
        h, key = layer(h, jax.tree.map(lambda x, i=i: x[i], params["layers"]), key)
    return h


def scanned(params: Any, h: Any, key: Any) -> Any:
    """Recomputed layers with a counter; the last key is read behind the layers."""

    def body(carry: Any, p: Any) -> Any:
        h, key, number = carry
        h, key = layer(h, p, key)
        return (h / (1.0 + 0.1 * number), key, number + 1), None

    start = (h, key, jnp.int32(0))
    (h, key, _), _ = jax.lax.scan(jax.checkpoint(body), start, params["layers"])
    return jnp.where(jax.random.bernoulli(key, 0.8, h.shape), h, 0.0)


def words(params: Any, h: Any, key: Any) -> Any:
    """A key as words, and a carry that depends on the key and the tokens."""
    key = jax.random.key_data(key)

    def body(carry: Any, p: Any) -> Any:
        h, key, total = carry
        h, key = layer(h, p, key)
        return (h, key, total + h.mean(1) * jax.random.uniform(key)), None

    start = (h, key, jnp.zeros((h.shape[0], WIDTH)))
    (h, _, total), _ = jax.lax.scan(body, start, params["layers"])
    return h + total[:, None]


LAYERED = {"written out": written_out, "scanned": scanned, "words": words}


def step_of(name: str) -> Any:
    def step(params: Any, tokens: Any, key: Any) -> Any:
        def loss(params: Any) -> Any:
            h = LAYERED[name](params, params["embedding"][tokens[:, :-1]], key)
            scores = jax.nn.log_softmax(h @ params["embedding"].T)
            return -jnp.take_along_axis(scores, tokens[:, 1:, None], axis=2).mean()

        value, grads = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    return step


@pytest.mark.parametrize(
    ("name", "numbers", "schedule"),
    [
        ("written out", (4, 4, 1), "1f1b"),
        ("scanned", (2, 4, 2), "1f1b"),
        ("words", (3, 4, 1), "gpipe"),
    ],
)
def test_pipeline_equals_plain_step(name: str, numbers: tuple[int, ...], schedule: str) -> None:
    """Results are equal, and stages pass on values of the microbatch alone."""
    module = pipeline(in_parts(step_of(name), numbers[1]), *numbers, schedule=schedule)
    carries = stage_carries(module.body.ops)
    for x in carries:  # values of layers and masks, no keys
        assert jnp.issubdtype(x.type.dtype, jnp.floating) or x.type.dtype == jnp.bool_, x
    want = jax.tree.leaves(jax.jit(step_of(name))(*arguments()))
    assert_same(results_of(module), want, tolerance=1e-5)
