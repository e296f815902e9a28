"""Weights in another type are stored only where something besides products needs them."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from partir_search.ir.core import Module
from partir_search.lowering.localize import localize
from partir_search.propagation.state import State
from partir_search.simulator.program_analysis import analyse_program
from partir_search.simulator.simulator import CostModel
from tests.support import ROUND, TPU_TRAITS, cost_of, module_of, ones, state_of, tile_arg

TPU = dataclasses.replace(ROUND, traits=TPU_TRAITS).with_traits(
    in_place_elementwise=True, recomputes_dot_operands=True
)


def step(w: Any, x: Any) -> Any:
    """The gradients of the weight [256, 512] and of its input."""

    def loss(w: Any, x: Any) -> Any:
        y = jnp.tanh(x @ w.astype(jnp.bfloat16))
        return (y.astype(jnp.float32) ** 2).sum()

    dw, dx = jax.grad(loss, (0, 1))(w, x)
    return w - dw, dx


def casts(module: Module) -> list[str]:
    """The arguments of which products make another form themselves."""
    found = analyse_program(module, state_of(module).graph.rules, TPU).weight_casts
    return [module.values[argument].name for argument in found.values()]


def spared(state: State) -> float:
    """Live bytes at the peak if all forms are stored, less those if products make them."""
    graph, program = state.graph, localize(state.partition())
    analysis = analyse_program(graph.module, graph.rules, TPU)
    assert len(analysis.weight_casts) == 1
    written = dataclasses.replace(analysis, weight_casts={})
    models = (CostModel(graph.module, graph.rules, TPU, analysis=a) for a in (written, analysis))
    before, after = (model.simulate(program).live for model in models)
    return float((before - after).max())


def test_products_convert_weights_themselves() -> None:
    module = module_of(step, ones(256, 512), np.ones((64, 256), jnp.bfloat16))
    assert casts(module) == [module.body.args[0].name]
    state = state_of(module)
    assert spared(state) == 2 * 256 * 512
    tile_arg(state, 0, 1, "model")
    assert spared(state) == 2 * 256 * 512 / state.mesh.sizes[1]


def test_what_is_sent_is_stored() -> None:
    """Tiled at rest, gathered for the product: the tile is converted once and kept."""
    state = state_of(module_of(step, ones(256, 512), np.ones((64, 256), jnp.bfloat16)))
    tile_arg(state, 1, 0, "batch")
    assert spared(state) == 2 * 256 * 512
    assert "all_gather" not in cost_of(state, TPU).bytes_by_kind
    tile_arg(state, 0, 0, "batch")
    assert cost_of(state, TPU).bytes_by_kind["all_gather"] > 0
    assert spared(state) == 0.0


def test_tables_are_stored() -> None:
    """A table that is looked up is converted as a whole, and products read that."""

    def tied(table: Any, tokens: Any) -> Any:
        x = table.astype(jnp.bfloat16)[tokens]
        return ((x @ table.astype(jnp.bfloat16).T).astype(jnp.float32) ** 2).sum()

    def apart(table: Any, head: Any, tokens: Any) -> Any:
        x = table.astype(jnp.bfloat16)[tokens]
        return ((x @ head.astype(jnp.bfloat16).T).astype(jnp.float32) ** 2).sum()

    tokens = np.zeros(64, np.int32)
    assert casts(module_of(jax.grad(tied), ones(512, 256), tokens)) == []
    module = module_of(jax.grad(apart, (0, 1)), ones(512, 256), ones(512, 256), tokens)
    assert casts(module) == [module.body.args[1].name]


@pytest.mark.parametrize("readers", ["result", "sort"])
def test_what_others_read_is_stored(readers: str) -> None:
    def f(w: Any, x: Any) -> Any:
        narrow = w.astype(jnp.bfloat16)
        other = narrow if readers == "result" else jnp.sort(narrow, axis=0)
        return other, jax.grad(lambda x: ((x @ narrow) ** 2).sum())(x.astype(jnp.bfloat16))

    assert casts(module_of(f, ones(256, 512), ones(64, 256))) == []
