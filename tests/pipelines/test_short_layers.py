"""Layers of a few ops, written out, as stages of a pipeline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import partir_search as ps
from partir_search.passes.roll import roll
from tests.support import assert_same, floats_of, module_of

LAYERS, WIDTH, BATCH = 8, 6, 16


def linear(h: Any, p: Any) -> Any:
    return h @ p["w"]


def tanh(h: Any, p: Any) -> Any:
    return jnp.tanh(h @ p["w"])


def relu(h: Any, p: Any) -> Any:
    return jax.nn.relu(h @ p["w"] + p["b"])


def sines(h: Any, p: Any) -> Any:
    """No contraction: a layer of one frequency for each feature."""
    return jnp.sin(h * p["b"])


def step_of(layer: Callable[..., Any]) -> Callable[..., Any]:
    def loss(params: Any, batch: Any) -> Any:
        h = batch["x"]
        for p in params:
            h = layer(h, p)
        return ((h - batch["y"]) ** 2).mean()

    def step(params: Any, batch: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, batch)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    return step


def arguments(layer: Callable[..., Any]) -> tuple[list[Any], Any]:
    names = {linear: "w", tanh: "w", relu: "wb", sines: "b"}[layer]
    x, y, *rest = floats_of(*[(BATCH, WIDTH)] * 2, *[(WIDTH, WIDTH), (WIDTH,)] * LAYERS)
    found = [dict(zip("wb", rest[i : i + 2], strict=True)) for i in range(0, 2 * LAYERS, 2)]
    return [{n: p[n] for n in names} for p in found], {"x": x, "y": y}


@pytest.mark.parametrize("layer", [linear, tanh, relu])
def test_short_layers_roll(layer: Callable[..., Any]) -> None:
    """All but the first, which has no gradient of what it reads."""
    leaves, tree = jax.tree.flatten(arguments(layer))

    def flat(*xs: Any) -> Any:
        return jax.tree.leaves(step_of(layer)(*jax.tree.unflatten(tree, xs)))

    assert roll(module_of(flat, *leaves)).layers == 2 * (LAYERS - 1)


@pytest.mark.devices
@pytest.mark.parametrize(
    ("layer", "shape", "chunks"), [(linear, (2, 4), 2), (tanh, (4, 2), 1), (relu, (2, 4), 2)]
)
def test_short_layers_are_stages(
    layer: Callable[..., Any], shape: tuple[int, int], chunks: int
) -> None:
    mesh = jax.make_mesh(shape, ("stage", "data"), devices=jax.devices())
    schedule = [ps.Pipeline("stage", microbatches=4, chunks=chunks)]
    step = ps.auto_partition(
        mesh, machine="tpu_v5e", schedule=schedule, episodes=20, progress=False
    )(jax.jit(step_of(layer)))
    assert step.plan(*arguments(layer)).pipeline is not None
    want = jax.tree.leaves(jax.jit(step_of(layer))(*arguments(layer)))
    assert_same(jax.tree.leaves(step(*arguments(layer))), want, tolerance=1e-5)


def test_short_layers_without_a_contraction_are_refused() -> None:
    """Elementwise ops repeat in any program; the message names the op, the line and a remedy."""
    mesh = jax.sharding.AbstractMesh((4, 2), ("stage", "data"))
    schedule = [ps.Pipeline("stage", microbatches=4)]
    step = ps.auto_partition(mesh, machine="tpu_v5e", schedule=schedule, progress=False)
    with pytest.raises(ValueError, match=r"at .*test_short_layers.*jax\.lax\.scan"):
        step(jax.jit(step_of(sines))).plan(*arguments(sines))
