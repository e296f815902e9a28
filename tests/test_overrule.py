"""What users decide themselves: groups, what searches leave alone, fixed shardings, goals."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P

import partir_search as ps
from models.catalog import MODELS

MESH = AbstractMesh((2, 4), ("batch", "model"))
ENTRY = MODELS["llama-tiny"]


class Smallest:
    """A goal: as few bytes at the peak as possible."""

    def excess(self, cost: ps.Cost) -> float:
        return 0.0

    def objective(self, cost: ps.Cost) -> float:
        return cost.peak_bytes


def plan_of(**kw: Any) -> ps.Plan:
    step = ps.auto_partition(MESH, machine="tpu_v5e", **kw)(ENTRY.step)
    return step.plan(*ENTRY.abstract_args(8))


def specs(plan: ps.Plan, end: str) -> set[str]:
    found = {str(spec) for path, _, spec in plan.arguments() if path.endswith(end)}
    assert found
    return found


def paths(end: str) -> list[str]:
    plan = plan_of(schedule=[])
    return [p for p, _, _ in plan.arguments() if p.endswith(end) and "/params/" in f"/{p}"]


def test_groups_are_tiled_alike() -> None:
    """Two matrices that nothing connects: by hand one is tiled and the other follows; in a search
    both go the same way.
    """

    def step(a: Any, b: Any, x: Any, y: Any) -> Any:
        return x @ a, y @ b

    def both_of(schedule: Any, *groups: ps.Group) -> tuple[Any, Any]:
        wrapped = ps.auto_partition(
            MESH, machine="tpu_v5e", schedule=schedule, groups=groups, episodes=40
        )(step)
        shapes = ((64, 64), (64, 64), (512, 64), (2, 64))
        plan = wrapped.plan(*(jax.ShapeDtypeStruct(s, np.float32) for s in shapes))
        return plan.partition_specs[0][:2]

    by_hand = [ps.ManualPartition({"a": 1}, axis="model")]
    assert both_of(by_hand) == (P(None, "model"), P())
    assert both_of(by_hand, ps.group("a", "b")) == (P(None, "model"), P(None, "model"))
    one, other = both_of(None, ps.group("a", "b"))
    assert one == other


def test_groups_refuse() -> None:
    with pytest.raises(ValueError, match="arguments that are tiled alike have one shape"):
        plan_of(schedule=[], groups=[ps.group(paths("gate/kernel")[0], paths("down/kernel")[0])])
    with pytest.raises(ValueError, match="'no/such' matches no argument; near it are"):
        plan_of(schedule=[], groups=[ps.group("no/such")])
    with pytest.raises(TypeError, match="groups are made by partir_search"):
        plan_of(groups=["state/**"])
    with pytest.raises(TypeError, match="group takes argument paths"):
        ps.group()


def test_a_search_leaves_arguments_alone() -> None:
    """No action of the plan is on what was to be left; without a word the search tiles it."""
    tight = {"goals": [Smallest()]}
    free = plan_of(episodes=60, **tight)
    leave = ps.AutomaticPartition(episodes=60, leave=("state/**",))
    left = plan_of(schedule=[leave], **tight)
    names = {v.name for p, v, _ in left.arguments() if p.startswith("state")}
    touched = {n for a in left.actions for n in getattr(a, "values", ())}
    assert names.isdisjoint(touched)
    assert any(n in names for a in free.actions for n in getattr(a, "values", ()))
    assert free.cost.peak_bytes < left.cost.peak_bytes
    with pytest.raises(ValueError, match="'nothing' matches no argument"):
        plan_of(schedule=[ps.AutomaticPartition(leave=("nothing",))])


@pytest.mark.devices
def test_fixed_shardings_with_free_dims(mesh: jax.sharding.Mesh) -> None:
    """UNCONSTRAINED leaves a dim to the search, None keeps it whole, None for a leaf leaves all."""

    def step(w: Any, x: Any) -> Any:
        return jax.numpy.tanh(x @ w)

    w, x = np.ones((16, 32), np.float32), np.ones((8, 16), np.float32)
    shardings = (P(None, P.UNCONSTRAINED), None)
    partitioned = ps.auto_partition(
        mesh,
        machine="tpu_v5e",
        schedule=[ps.ManualPartition({"w": 1, "x": 0}, axis="model")],
        in_shardings=(P(None, P.UNCONSTRAINED), P()),
    )(step)
    with pytest.raises(ValueError, match="x cannot be tiled on dim 0 along axis 'model'"):
        partitioned.plan(w, x)
    free = ps.auto_partition(mesh, machine="tpu_v5e", in_shardings=shardings, episodes=40)(step)
    plan = free.plan(w, x)
    assert (
        plan.partition_specs[0][0] in (P(None, s) for s in ("batch", "model", ("batch", "model")))
        or plan.partition_specs[0][0] == P()
    )
    np.testing.assert_allclose(free(w, x), step(w, x), rtol=1e-5)


def test_a_goal_of_ones_own() -> None:
    """Any object with `excess` and `objective`: here as few bytes at the peak as possible."""
    small, fast = plan_of(goals=[Smallest()], episodes=80), plan_of(episodes=80)
    assert small.cost.peak_bytes <= fast.cost.peak_bytes
    assert fast.cost.seconds <= small.cost.seconds
