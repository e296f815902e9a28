"""Tiles of a plan in forms of the program that run fewer segments again."""

from __future__ import annotations

import random

import jax.numpy as jnp
import pytest

import partir_search as ps
from partir_search.ir.mesh import MeshShape
from partir_search.ir.rule import NONE
from partir_search.passes.remat import find_segments, namesake, rematerialize
from partir_search.plan.planned import Planned
from partir_search.planning.form_tiles import with_tiles_of
from partir_search.planning.grouped_actions import grouped
from partir_search.planning.memory_fit import renamed_for
from partir_search.planning.planner import Planner
from partir_search.propagation.actions import Replicate, Tile
from partir_search.propagation.apply import apply_compatible
from partir_search.propagation.state import State
from tests.support import check_partition, module_of
from tests.test_models import random_actions
from tests.test_remat import deep, deep_args

MESH = MeshShape(("batch", "model"), (2, 4))


def tiles_of(planned: Planned, value: int) -> list[int]:
    """[axes] tiled dim of a value, or -1."""
    cls = planned.graph.class_of[value]
    return [max(row[cls], NONE) for row in planned.state.tiles]


@pytest.mark.devices
@pytest.mark.parametrize("seed", range(4))
def test_values_have_the_tiles_of_the_plan(seed: int) -> None:
    """Of a random plan with all segments again, with one segment again and none; executed."""
    args = deep_args()
    module = module_of(deep, *args, ties=[(i + 1, i) for i in range(4)])
    segments = find_segments(module)
    full = Planner(rematerialize(module, segments), MESH, ps.MACHINES["tpu_v5e"])
    actions = list(random_actions(State(full.graph, MESH), random.Random(seed)))
    planned, dropped = full.replay_compatible(actions)
    assert not dropped
    known = planned.module.value_names()
    for form in (rematerialize(module, segments[seed % 2 : seed % 2 + 1]), module):
        planner = Planner(form, MESH, ps.MACHINES["tpu_v5e"])
        renamed = renamed_for(form, planned.actions)
        played, _ = planner.replay_compatible(renamed)
        fixed = renamed[:1]
        found = with_tiles_of(planner, planned, played, renamed, fixed, lambda cost: 0.0)
        assert found is not None
        assert {v for a in fixed for v in a.values} <= {v for a in found.actions for v in a.values}
        alike = 0
        for members in found.graph.members:
            name = namesake(form.values[members[0]].name, known)
            alike += tiles_of(found, members[0]) == tiles_of(planned, known[name].id)
        assert alike >= 0.9 * len(found.graph.members)  # tiles that are illegal there are left out
        check_partition(found.sketch.partition, deep, args)


def test_plans_with_modes_keep_their_actions() -> None:
    args = deep_args()
    module = module_of(deep, *args, ties=[(i + 1, i) for i in range(4)])
    planner = Planner(module, MESH, ps.MACHINES["tpu_v5e"])
    actions = [Tile("a0", 0, "batch"), ps.KeepGathered("batch")]
    planned, _ = planner.replay_compatible(actions)
    assert with_tiles_of(planner, planned, planned, actions, (), lambda cost: 0.0) is None


def test_equal_actions_on_layers_are_one() -> None:
    """Layers differ in the numbers of their names; other actions, and their order, are kept."""
    x, weights = jnp.ones((8, 16)), [jnp.ones((16, 16))] * 4
    module = module_of(lambda x, *w: [x @ each for each in w], x, *weights)
    state = State(Planner(module, MESH, ps.MACHINES["tpu_v5e"]).graph, MESH)
    tiles = [Tile(f"a{i}", 1, "model", barriers=("a0",)) for i in range(1, 5)]
    actions = [Replicate("a0", "batch"), *tiles]
    apply_compatible(state, actions)
    first, second = grouped(actions, state)
    assert first == actions[0]
    assert second == Tile("a1", 1, "model", ("a2", "a3", "a4"), ("a0",))
    assert grouped(actions[:2], state) == actions[:2]  # they reach another state
