"""Pipelines of layers with losses, states or gradients that further ops read or make."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import partir_search as ps
from partir_search.ir.core import Module
from partir_search.passes.pipeline.layers import Layers
from partir_search.passes.pipeline.loop_parts import NoPipeline, layer_pairs, microbatch_loop
from partir_search.passes.pipeline.zero_cotangents import results_without_item
from partir_search.passes.roll import layer_scans
from tests.pipelines.programs import LAYERS, STEPS, arguments
from tests.pipelines.steps import TOKENS, mesh_of
from tests.pipelines.test_lockstep import in_parts, pipeline, results_of
from tests.pipelines.unlike_layers import UNLIKE, one_layer_scanned, unlike_arguments
from tests.support import assert_same, module_of


def parts_of(name: str, microbatches: int) -> Module:
    return in_parts(UNLIKE[name], microbatches, *unlike_arguments(name))


@pytest.mark.parametrize(
    ("name", "numbers", "schedule"),
    [
        ("exits", (2, 4, 2), "1f1b"),
        ("experts", (4, 8, 1), "1f1b"),
        pytest.param("experts", (3, 4, 1), "1f1b split", marks=pytest.mark.long),
        ("mixture", (4, 4, 1), "gpipe"),
        pytest.param("mixture", (2, 4, 2), "1f1b", marks=pytest.mark.long),
        ("statistics", (2, 4, 2), "1f1b"),
        ("gates", (4, 4, 1), "1f1b"),
        ("skipped", (4, 4, 1), "1f1b"),
        pytest.param("skipped", (2, 4, 2), "gpipe", marks=pytest.mark.long),
        ("one layer", (4, 4, 2), "1f1b"),
        pytest.param("one layer, scanned", (2, 4, 1), "1f1b", marks=pytest.mark.long),
        ("frozen", (4, 4, 1), "1f1b"),
        ("two stacks", (2, 4, 2), "1f1b split"),
    ],
)
def test_pipeline_equals_plain_step(name: str, numbers: tuple[int, ...], schedule: str) -> None:
    kind, *split = schedule.split()
    parts = parts_of(name, numbers[1])
    module = pipeline(parts, *numbers, schedule=kind, split=bool(split))
    args = unlike_arguments(name)
    want = jax.tree.leaves(jax.jit(UNLIKE[name])(*args))
    assert_same(results_of(module, *args), want, tolerance=1e-5)


@pytest.mark.devices
@pytest.mark.parametrize("name", ["exits", "frozen"])
def test_devices(name: str) -> None:
    """On stage 4 x data 2, with the tokens on data: equal to the plain step."""
    schedule = [ps.Pipeline("stage", microbatches=4, chunks=1), TOKENS]
    mesh = mesh_of((4, 2), ("stage", "data"))
    step = ps.auto_partition(mesh, machine="tpu_v5e", schedule=schedule, progress=False)(
        jax.jit(UNLIKE[name])
    )
    args = unlike_arguments(name)
    assert step.plan(*args).pipeline is not None
    want = jax.tree.leaves(jax.jit(UNLIKE[name])(*args))
    assert_same(jax.tree.leaves(step(*args)), want, tolerance=1e-5)


def layers_of(name: str) -> tuple[Layers, Layers]:
    """Forward and backward layers of a step."""
    _, loop = microbatch_loop(parts_of(name, 4))
    (pair,) = layer_pairs(loop.regions[0])
    return pair


def test_layers_begin_with_the_fewest_values_between() -> None:
    """A repeat that begins within a layer is rolled from a layer's edge on, one layer less."""
    forward, backward = layers_of("frozen")
    assert (forward.count, len(forward.carry), len(backward.carry)) == (LAYERS - 1, 1, 1)


def test_losses_of_layers_are_rolled_with_their_layer() -> None:
    """No residual of one layer is read by the backward pass of another."""
    forward, backward = layers_of("exits")
    assert forward.count == LAYERS - 1  # the first total begins with a number
    residuals = set(forward.stacks)
    assert len([x for x in backward.stacked if x not in residuals]) == 1  # the weights


def test_cotangents_in_the_carry_need_no_mask() -> None:
    """Gradients without an item are zero, but for losses inside of the layers."""

    def without_item(step: str) -> frozenset[int]:
        _, loop = microbatch_loop(in_parts(STEPS[step], 4))
        return results_without_item(layer_pairs(loop.regions[0])[0][1])

    assert not any(without_item(name) for name in ("tied", "recomputed", "narrow", "attending"))
    assert results_without_item(layers_of("statistics")[1])


def test_scans_without_rows_are_no_layers() -> None:
    """A recurrence on one set of weights is a stack of layers only with a backward pass."""
    assert not layers_of("one layer, scanned")[0].stacked
    params, tokens, _ = unlike_arguments("one layer, scanned")
    leaves, tree = jax.tree.flatten(params)

    def loss(*leaves: Any) -> Any:
        return one_layer_scanned(jax.tree.unflatten(tree, leaves), tokens)[0]

    forward = module_of(loss, *leaves)
    assert [op.prim for op in forward.body.ops].count("scan") == 1
    assert layer_scans(forward.body) == ()


def keys_of_layers(params: Any, tokens: Any, key: Any, read: bool) -> Any:
    """A step whose layers hand out keys, returned or drawn from behind the layers."""

    def layer(h: Any, given: Any) -> Any:
        p, k = given
        return h + jnp.tanh(h @ p["w"]), jax.random.fold_in(k, 1)

    def loss(params: Any) -> Any:
        given = params["layers"], jax.random.split(key, LAYERS)
        h, keys = jax.lax.scan(layer, params["embedding"][tokens], given)
        if read:
            h = h * jax.random.normal(keys[0], h.shape)
        return h.mean(), jax.random.key_data(keys) if read else keys

    return jax.value_and_grad(loss, has_aux=True)(params)


def test_keys_of_layers_are_returned_but_not_read() -> None:
    module = pipeline(in_parts(lambda *args: keys_of_layers(*args, read=False), 4), 2, 4, 1)
    want = jax.tree.leaves(jax.jit(lambda *args: keys_of_layers(*args, read=False))(*arguments()))
    assert_same(results_of(module), want, tolerance=1e-5)
    with pytest.raises(NoPipeline, match=r"at .*test_unlike_layers.py:\d+ .*a row for each layer"):
        pipeline(in_parts(lambda *args: keys_of_layers(*args, read=True), 4), 2, 4, 1)


def test_a_metric_that_is_no_sum_is_refused() -> None:
    """A root of a mean over the batch, in each layer: the op, its line and a remedy."""

    def step(params: Any, tokens: Any, key: Any) -> Any:
        def layer(h: Any, p: Any) -> Any:
            h = h + jnp.tanh(h @ p["w"])
            return h, jnp.sqrt((h**2).mean())

        def loss(params: Any) -> Any:
            h, norms = jax.lax.scan(layer, params["embedding"][tokens], params["layers"])
            return h.mean(), norms

        return jax.value_and_grad(loss, has_aux=True)(params)

    said = r"sqrt at .*test_unlike_layers.py:\d+ .*needs all microbatches at once.*Normalise over"
    with pytest.raises(ValueError, match=said):
        in_parts(step, 4)
