"""Pipelines of layers that read earlier layers than the last, and of sums that grow by layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import partir_search as ps
from partir_search.passes.roll import roll
from partir_search.planning.trace import read_call, split_call
from tests.pipelines.kinds import BATCH, WIDTH, init
from tests.support import assert_same

LAYERS = 12


def layer(h: Any, p: Any) -> Any:
    return h + jax.nn.gelu(h @ p["up"]) @ p["down"]


def params(wide: int = 1) -> list[dict[str, Any]]:
    """Parameters of all layers, of `wide` states side by side as input."""
    up = (wide * WIDTH, 2 * WIDTH)
    return [init(i, up=up, down=(2 * WIDTH, WIDTH)) for i in range(LAYERS)]


def added(layers: Any, x: Any) -> Any:
    """Each layer adds half of the state two layers before."""
    h, before = x, x
    for p in layers:
        h, before = layer(h, p) + 0.5 * before, h
    return h


def concatenated(layers: Any, x: Any) -> Any:
    """Each layer reads the two states before, side by side."""
    h, before = x, x
    for p in layers:
        both = jnp.concatenate([h, before], -1)
        h, before = h + jax.nn.gelu(both @ p["up"]) @ p["down"], h
    return h


def three_before(layers: Any, x: Any) -> Any:
    """Each layer adds a share of the state three layers before."""
    states = [x, x, x]
    for p in layers:
        states.append(layer(states[-1], p) + 0.1 * jnp.tanh(states[-3]))
    return states[-1]


def summed(layers: Any, x: Any) -> Any:
    """Each layer reads the sum of all earlier states, written out."""
    states = [x]
    for p in layers:
        states.append(layer(sum(states), p))
    return states[-1]


def averaged(layers: Any, x: Any) -> Any:
    """Each layer adds the mean of all earlier states; the head reads their sum."""
    states = [x]
    for p in layers:
        states.append(layer(states[-1] + sum(states) / len(states), p))
    return sum(states)


STEPS: dict[str, tuple[Callable[..., Any], int, int]] = {
    "added": (added, 1, 18),
    "concatenated": (concatenated, 2, 20),
    "three before": (three_before, 1, 14),
    "summed": (summed, 1, 18),
    "averaged": (averaged, 1, 20),
}  # model, states read by a layer, least number of layers rolled, forward and
# backward ones counted apart: versions of jax order transposed ops, and so end layers, differently


def step_of(model: Callable[..., Any]) -> Callable[..., Any]:
    def loss(layers: Any, batch: Any) -> Any:
        return jnp.mean((jnp.tanh(model(layers, batch["x"]) * 0.1) - batch["y"]) ** 2)

    def step(layers: Any, batch: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(layers, batch)
        return jax.tree.map(lambda p, g: p - 0.1 * g, layers, grads), value

    return step


def arguments(name: str) -> tuple[Any, ...]:
    return params(STEPS[name][1]), init(99, x=(BATCH, WIDTH), y=(BATCH, WIDTH))


@pytest.mark.parametrize("name", STEPS)
def test_layers_roll(name: str) -> None:
    model, _, rolled = STEPS[name]
    step, args = jax.jit(step_of(model)), arguments(name)
    module = read_call(step, split_call(step, args, {}, (), ()), args, {}, name).module
    assert roll(module).layers >= rolled


@pytest.mark.devices
@pytest.mark.parametrize("shape", [(4, 2), (2, 4)])
@pytest.mark.parametrize("name", STEPS)
def test_a_pipeline_equals_the_plain_step(name: str, shape: tuple[int, int]) -> None:
    mesh = jax.make_mesh(shape, ("stage", "data"), devices=jax.devices())
    step = step_of(STEPS[name][0])
    partitioned = ps.auto_partition(
        mesh,
        machine="tpu_v5e",
        schedule=[ps.Pipeline("stage", microbatches=4)],
        episodes=20,
        progress=False,
    )(jax.jit(step))
    args = arguments(name)
    assert partitioned.plan(*args).pipeline is not None
    want = jax.tree.leaves(jax.jit(step)(*args))
    assert_same(jax.tree.leaves(partitioned(*args)), want, tolerance=1e-5)
