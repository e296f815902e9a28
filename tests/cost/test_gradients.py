"""What a region of the backward pass makes once more is not a gradient."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from partir_search.ir.analysis.gradients import gradients
from partir_search.planning.microbatch import in_time
from partir_search.rules.registry import RuleTable
from tests.support import module_of

X, W, V = np.ones((8, 4), np.float32), np.ones((4, 6), np.float32), np.ones((6, 4), np.float32)


def mlp(x: Any, w: Any, v: Any) -> Any:
    return jnp.tanh(x @ w) @ v


def products(fn: Any, late: bool) -> list[tuple[str, tuple[int, ...]]]:
    """Where each product is and its sides, of those that are gradients or of the others."""
    module = module_of(jax.grad(fn, argnums=(0, 1, 2)), X, W, V)
    found = gradients(module, list(map(RuleTable(), module.ops)))
    body = {op.id for op in module.body.ops}
    return sorted(
        ("body" if op.id in body else "region", tuple(sorted(op.results[0].type.shape)))
        for op in module.ops
        if op.prim == "dot_general" and (op.id in found) == late
    )


def test_without_regions_it_is_the_backward_pass() -> None:
    def loss(*args: Any) -> Any:
        return mlp(*args).sum()

    assert products(loss, False) == [("body", (6, 8))]
    assert products(loss, True) == [("body", sides) for sides in [(4, 6), (4, 6), (4, 8), (6, 8)]]


def test_what_is_made_again_is_none() -> None:
    def loss(*args: Any) -> Any:
        return jnp.square(jax.checkpoint(mlp)(*args)).sum()

    forward = [("body", (4, 8)), ("body", (6, 8))]
    assert products(loss, False) == [*forward, ("region", (6, 8))]
    assert products(loss, True) == [("region", s) for s in [(4, 6), (4, 6), (4, 8), (6, 8)]]


def test_nor_in_a_scan() -> None:
    def loss(x: Any, w: Any, v: Any) -> Any:
        layers = jnp.stack([w, w]), jnp.stack([v, v])
        y, _ = jax.lax.scan(lambda y, p: (jax.checkpoint(mlp)(y, *p), None), x, layers)
        return jnp.square(y).sum()

    forward = [("region", (4, 8)), ("region", (6, 8))]
    assert products(loss, False) == [*forward, ("region", (6, 8))]
    assert products(loss, True) == [("region", s) for s in [(4, 6), (4, 6), (4, 8), (6, 8)]]


def test_a_loop_over_microbatches_has_both_passes() -> None:
    def step(params: Any, x: Any) -> Any:
        def loss(params: Any) -> Any:
            return mlp(x, *params).sum()

        value, grads = jax.value_and_grad(loss)(params)
        return [p - g for p, g in zip(params, grads, strict=True)], value

    def flat(w: Any, v: Any, x: Any) -> Any:
        (w, v), value = step([w, v], x)
        return w, v, value

    module = in_time(module_of(flat, W, V, X, ties=[(0, 0), (1, 1)]), 2).module
    found = gradients(module, list(map(RuleTable(), module.ops)))
    (loop,) = (op for op in module.body.ops if op.regions)
    dots = [op for op in loop.regions[0].ops if op.prim == "dot_general"]
    late = sorted(tuple(sorted(op.results[0].type.shape)) for op in dots if op.id in found)
    assert late == [(4, 6), (4, 6), (4, 6)]
    assert len(dots) == len(late) + 2
