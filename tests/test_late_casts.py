"""Layers that use bf16 weights in f32, over microbatches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from partir_search.ir.mesh import MeshShape
from partir_search.ir.verify import verify
from partir_search.passes.late_casts import with_late_casts
from partir_search.planning.microbatch import in_time, microbatched
from tests.support import module_of, plain, run_evaluator, state_of

LAYERS, WIDTH, BATCH = 3, 8, 16
ONE = MeshShape(("x",), (1,))


def norm(h: Any, p: Any) -> Any:
    """A normalisation in f32, with a scale in bf16."""
    wide = h.astype(jnp.float32)
    wide = wide / jnp.sqrt(1e-3 + (wide**2).mean(-1, keepdims=True))
    return (wide * p["scale"].astype(jnp.float32)).astype(jnp.bfloat16)


def twice(h: Any, p: Any) -> Any:
    """A product in f32 with a matrix and its transpose, and one in bf16."""
    wide = p["w"].astype(jnp.float32)
    x = jnp.tanh(h.astype(jnp.float32) @ wide) @ p["w"].T.astype(jnp.float32)
    return h + x.astype(jnp.bfloat16) + jnp.tanh(h @ p["w"])


def layer(h: Any, p: Any) -> Any:
    return twice(norm(h, p), p), None


def step_of(wrap: Callable[..., Any]) -> Callable[..., Any]:
    def step(params: Any, x: Any) -> Any:
        def loss(params: Any) -> Any:
            h, _ = jax.lax.scan(wrap(layer), x, params)
            return (h.astype(jnp.float32) ** 2).mean()

        value, grads = jax.value_and_grad(loss)(params)
        return grads, value

    return step


def arguments() -> tuple[Any, Any]:
    keys = jax.random.split(jax.random.key(0), 2)
    w = 0.3 * jax.random.normal(keys[0], (LAYERS, WIDTH, WIDTH), jnp.bfloat16)
    x = jax.random.normal(keys[1], (BATCH, WIDTH), jnp.bfloat16)
    return {"scale": jnp.ones((LAYERS, WIDTH), jnp.bfloat16), "w": w}, x


def flat(step: Callable[..., Any]) -> Any:
    """Module of a step."""
    leaves, tree = jax.tree.flatten(arguments())
    return module_of(lambda *xs: jax.tree.leaves(step(*jax.tree.unflatten(tree, xs))), *leaves)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.checkpoint])
def test_gradients_of_narrow_weights_are_accumulated(wrap: Callable[..., Any]) -> None:
    """As far from the step in f32 as the plain step, within a rounding to bf16."""
    step, (params, x) = step_of(wrap), arguments()
    want = jax.jit(step)(params, x)
    got = jax.jit(microbatched(step, 4))(params, x)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert a.dtype == b.dtype
        a, b = plain(a).astype(np.float32), plain(b).astype(np.float32)
        np.testing.assert_allclose(a, b, rtol=0.02, atol=0.01 * np.abs(b).max())


def test_gradients_leave_the_layers_in_f32() -> None:
    step, args = step_of(jax.checkpoint), arguments()
    late = with_late_casts(flat(step))
    verify(late)
    scans = [op for op in late.body.ops if op.prim == "scan" and op.backward]
    assert [r.type.dtype for op in scans for r in op.results[1:]] == [jnp.float32] * 2
    results = run_evaluator(state_of(late, ONE).partition(), jax.tree.leaves(args))
    for a, b in zip(results, jax.tree.leaves(jax.jit(step)(*args)), strict=True):
        np.testing.assert_allclose(
            plain(a).astype(np.float32), plain(b).astype(np.float32), rtol=0.02, atol=1e-3
        )
    assert with_late_casts(late) is late


def test_a_cast_of_a_metric_is_refused() -> None:
    """A mean over the batch of each layer that the next layer reads, in bf16."""

    def loss(params: Any, x: Any) -> Any:
        def mean(h: Any, p: Any) -> Any:
            found = (h.astype(jnp.float32) ** 2).mean(0).astype(jnp.bfloat16)
            return h + found * p["scale"], None

        h, _ = jax.lax.scan(mean, x, params)
        return (h.astype(jnp.float32) ** 2).mean()

    def step(params: Any, x: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, x)
        return grads, value

    with pytest.raises(ValueError, match="needs all microbatches at once"):
        in_time(flat(step), 4)
