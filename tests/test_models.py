"""Every model of the catalog: the found plan and the known strategies compute the plain step."""

from __future__ import annotations

import functools
from typing import Any

import jax
import pytest

import partir_search as ps
from models.catalog import MODELS
from partir_search.propagation.actions import action_from_json
from tests.support import assert_same

TINY = ("graph-net-tiny", "llama-tiny", "moe-tiny", "t5-tiny", "unet-tiny")


@functools.cache
def plain(name: str) -> tuple[Any, Any]:
    """Arguments and results of one step on one device."""
    entry = MODELS[name]
    args = jax.jit(lambda: entry.args(8))()
    return args, jax.jit(entry.step)(*args)


@pytest.mark.devices
@pytest.mark.parametrize("machine", ["tpu_v5e", "cpu"])
@pytest.mark.parametrize("name", TINY)
def test_found_plan_equals_plain(name: str, machine: str, mesh: jax.sharding.Mesh) -> None:
    """The machines differ in what pays: on `cpu` links are slow, on v5e kernels are."""
    args, want = plain(name)
    step = ps.auto_partition(mesh, machine=machine, episodes=60)(MODELS[name].step)
    got = jax.block_until_ready(step(*args))
    assert not step.plan(*args).opaque()
    assert_same(jax.tree.leaves(got), jax.tree.leaves(want), tolerance=1e-4)


@pytest.mark.devices
def test_experts_on_the_axis_of_the_tokens(mesh: jax.sharding.Mesh) -> None:
    """GShard: tokens travel to the experts and back, forward and backward (where the tokens that
    went in are sent once more, for the weights' gradients), and no expert's weight moves.
    """
    (args, want), entry = plain("moe-tiny"), MODELS["moe-tiny"]
    axis, other = mesh.axis_names
    known = ps.auto_partition(mesh, machine="tpu_v5e")(entry.step).known_plans(*args)
    plan = known[f"BP({axis}+{other})+EP({axis})"]
    mixtures = sum(i % 2 for i in range(entry.config.layers))
    assert [c.kind for c in plan.collectives].count("all_to_all") == 5 * mixtures
    specs = {path: spec for path, _, spec in plan.arguments()}
    assert all(spec[0] == axis for path, spec in specs.items() if path.endswith(("w_in", "w_out")))
    actions = plan.to_json()["actions"]
    assert any("barriers" in a for a in actions)
    assert [action_from_json(a).to_json() for a in actions] == actions
    step = ps.auto_partition(mesh, machine="tpu_v5e", schedule=plan)(entry.step)
    got = jax.block_until_ready(step(*args))
    assert_same(jax.tree.leaves(got), jax.tree.leaves(want), tolerance=1e-4)
