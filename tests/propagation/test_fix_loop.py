"""Loops of ops fixed by an action, against tiles of their values: played, executed, saved."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

import partir_search as ps
from partir_search.ir.printer import print_partition
from partir_search.lowering.localize import localize
from partir_search.plan.plan import spec_of
from partir_search.propagation.conflicts import find_conflicts
from partir_search.propagation.contradictions import IllegalAction
from partir_search.propagation.state import State
from partir_search.strategies.decisions import FixLoops
from tests.support import check_partition, floats_of, module_of, state_of


def layers(x: jax.Array, w: jax.Array, v: jax.Array) -> jax.Array:
    return jnp.tanh(x @ w) @ v


ARGS = floats_of((16, 8), (8, 8), (8, 12))


TEXT = """\
func layers(%a0: f32[16,8]{batch:0}, %a1: f32[8,8], %a2: f32[8,12]) mesh<batch:2, model:4> {
  %dot_general = dot_general %a0, %a1 : f32[16,8]{batch:0}
  %dot_general_1 = tile 0 "batch" (%batch: range<2>) {
    %dot_generals = slice 0 %dot_general[%batch]
    %tanh = tanh %dot_generals : f32[16,8]{batch:0}
    %dot_general_1 = dot_general %tanh, %a2 : f32[16,12]{batch:0}
    yield %dot_general_1
  }
  return %dot_general_1
}
"""


def played(*actions: ps.Action) -> State:
    state = state_of(module_of(layers, *ARGS))
    for action in actions:
        action.apply(state)
    return state


NAMES = [v.name for op in module_of(layers, *ARGS).ops for v in op.results]
FIRST, LAST = NAMES[0], NAMES[-1]


@pytest.mark.devices
def test_no_loop_though_a_value_is_tiled() -> None:
    """The first product runs on the whole batch; what follows is tiled again."""
    state = played(ps.FixLoop(FIRST, -1, "batch"), ps.Tile("a0", 0, "batch"))
    module = state.graph.module
    tiles = {v.name: state.tiles[0][state.graph.class_of[v.id]] for v in module.values}
    assert tiles["a0"] == 0
    assert tiles[FIRST] == -1
    ps.Tile(LAST, 0, "batch").apply(state)
    assert print_partition(state.partition()) == TEXT.rstrip()
    steps = [type(move.step).__name__ for move, _ in localize(state.partition()).reshards()]
    assert steps == ["AllGather", "Slice"]
    check_partition(state.partition(), layers, ARGS)


@pytest.mark.devices
@pytest.mark.parametrize("factor", [0, 1, 2])
def test_a_loop_that_no_value_asks_for(factor: int) -> None:
    state = played(ps.FixLoop(LAST, factor, "model"), ps.Tile("a0", 0, "batch"))
    node = state.graph.node_of[state.graph.module.ops[-1].id]
    assert state.loops[1][node] == factor
    assert not list(find_conflicts(state))
    check_partition(state.partition(), layers, ARGS)


def test_illegal_loops() -> None:
    with pytest.raises(IllegalAction, match="no factor 7"):
        played(ps.FixLoop(LAST, 7, "model"))
    with pytest.raises(IllegalAction, match="cannot loop over 0"):
        played(ps.FixLoop(LAST, 1, "model"), ps.FixLoop(LAST, 0, "model"))
    with pytest.raises(IllegalAction, match="no op with loops of its own"):
        played(ps.FixLoop("a0", -1, "model"))
    with pytest.raises(IllegalAction, match="no value"):
        played(ps.FixLoop("nowhere", -1, "model"))


@pytest.mark.devices
def test_saved_replayed_and_explained(mesh: Mesh, tmp_path: Any) -> None:
    free = ps.auto_partition(mesh, schedule=[])(layers).plan(*ARGS)
    actions = (ps.FixLoop(FIRST, -1, "batch", (LAST,)), ps.Tile("x", 0, "batch"))
    spec = dataclasses.replace(spec_of(free), actions=actions)
    plan = ps.auto_partition(mesh, schedule=spec)(layers).plan(*ARGS)
    plan.save(tmp_path / "plan.json")
    again = ps.auto_partition(mesh, schedule=ps.load_plan(tmp_path / "plan.json"))(layers)
    assert again.plan(*ARGS).actions == actions
    assert "by Tile(value='x', dim=0" in again.plan(*ARGS).explain("x")
    np.testing.assert_allclose(again(*ARGS), layers(*ARGS), rtol=1e-5, atol=1e-5)


def test_factor_beyond_an_op_is_not_legal() -> None:
    """A decision for ops of unlike rank is not legal, where one of them lacks the factor."""
    module = module_of(lambda x: (jnp.sin(x), jnp.cos(x.sum(1))), jnp.ones((8, 8)))
    state = state_of(module)
    results = {op.prim: op.results[0].id for op in module.ops}
    assert FixLoops((results["sin"],), 1, (0,)).is_legal(state)
    assert not FixLoops((results["sin"], results["cos"]), 1, (0,)).is_legal(state)
