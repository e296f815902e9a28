"""What users decide themselves: groups, what searches leave alone, fixed shardings, goals."""

from __future__ import annotations

import pathlib
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
    leave = ps.AutomaticPartition(episodes=60, exclude=("state/**",))
    left = plan_of(schedule=[leave], **tight)
    names = {v.name for p, v, _ in left.arguments() if p.startswith("state")}
    touched = {n for a in left.actions for n in getattr(a, "values", ())}
    assert names.isdisjoint(touched)
    assert any(n in names for a in free.actions for n in getattr(a, "values", ()))
    assert free.cost.peak_bytes < left.cost.peak_bytes
    with pytest.raises(ValueError, match="'nothing' matches no argument"):
        plan_of(schedule=[ps.AutomaticPartition(exclude=("nothing",))])


def fixed(mesh: jax.sharding.Mesh, inputs: Any, outputs: Any = None, **options: Any) -> Any:
    """The step below with these shardings; plans of it see what it is like."""

    def step(w: Any, x: Any) -> Any:
        return jax.numpy.tanh(x @ w) + x

    return ps.auto_partition(
        mesh, machine="tpu_v5e", in_shardings=inputs, out_shardings=outputs, **options
    )(step)


W, X = np.linspace(-1, 1, 1024, dtype=np.float32).reshape(32, 32), np.ones((8, 32), np.float32)
EXPECTED = np.tanh(X @ W) + X


@pytest.mark.devices
def test_fixed_shardings_with_free_dims(mesh: jax.sharding.Mesh) -> None:
    """UNCONSTRAINED leaves a dim to the search, None keeps it whole, None for a leaf leaves all."""
    by_hand = [ps.ManualPartition({"w": 0}, axis="model")]
    free, whole = (P(P.UNCONSTRAINED, None), P()), (P(None, P.UNCONSTRAINED), P())
    plan = fixed(mesh, free, schedule=by_hand).plan(W, X)
    assert plan.partition_specs[0][0] == P("model")
    with pytest.raises(ValueError, match=r"w cannot be tiled on dim 0 .* give it UNCONSTRAINED"):
        fixed(mesh, whole, schedule=by_hand).plan(W, X)
    # The result would be tiled on its first dim, as the batch is, were that not to stay whole.
    batch = [ps.ManualPartition({"x": 0}, axis="batch")]
    free = fixed(mesh, None, schedule=batch)
    assert free(W, X).sharding.spec == P("batch")
    barred = fixed(mesh, None, P(None, P.UNCONSTRAINED), schedule=batch)
    plan = barred.plan(W, X)
    assert plan.partition_specs[0] == (P(), P("batch"))
    assert "a fixed sharding keeps dims [0] replicated" in plan.explain("add")
    result = barred(W, X)
    assert result.sharding.spec == P()
    np.testing.assert_allclose(result, EXPECTED, rtol=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_a_search_tiles_no_barred_dim(mesh: jax.sharding.Mesh, seed: int) -> None:
    """Least memory would tile both dims; the folded search and the whole program both know."""
    shardings = (P(P.UNCONSTRAINED, None), P(None, P.UNCONSTRAINED))
    options = {"goals": [Smallest()], "episodes": 60, "seed": seed}
    (w, x), _ = fixed(mesh, shardings, **options).plan(W, X).partition_specs
    assert len(w) == 1, "tiled, but not on its second dim"
    assert x[:1] in ((), (None,))
    free, _ = fixed(mesh, None, **options).plan(W, X).partition_specs
    assert free != (w, x)


@pytest.mark.devices
def test_fixed_shardings_stand_beside_each_other(mesh: jax.sharding.Mesh) -> None:
    """What one says does not spread to what another says otherwise; axes keep their order, and
    where two orders meet, tiles are permuted.
    """
    inputs, outputs = (P(None, ("model", "batch")), P("batch")), P(("model", "batch"))
    one = fixed(mesh, inputs, outputs, schedule=[])
    assert one.plan(W, X).partition_specs[0] == inputs
    result = one(W, X)
    assert result.sharding.spec == outputs
    np.testing.assert_allclose(result, EXPECTED, rtol=1e-5)
    other = fixed(mesh, (P(), P(("batch", "model"))), P(("model", "batch")), schedule=[])
    plan = other.plan(W, X)
    assert plan.partition_specs[0] == (P(), P(("batch", "model")))
    assert plan.collective_counts["collective_permute"] == 1
    result = other(W, X)
    assert result.sharding.spec == P(("model", "batch"))
    np.testing.assert_allclose(result, EXPECTED, rtol=1e-5)


def test_constraints_in_a_row(mesh: jax.sharding.Mesh) -> None:
    """A value may be brought from one sharding to another by two constraints."""
    mesh = jax.sharding.Mesh(mesh.devices, mesh.axis_names)  # whose axes constraints may name

    def step(x: Any) -> Any:
        rows = jax.lax.with_sharding_constraint(x * 2, jax.NamedSharding(mesh, P("batch")))
        columns = jax.lax.with_sharding_constraint(
            rows + 1, jax.NamedSharding(mesh, P(None, "batch"))
        )
        return columns * 3

    plan = ps.auto_partition(mesh, machine="tpu_v5e", schedule=[])(step).plan(X)
    assert [c.kind for c in plan.collectives] == ["all_to_all"]
    assert plan.partition_specs[0] == (P("batch"),)


@pytest.mark.devices
@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
def test_state_that_leaves_otherwise(mesh: jax.sharding.Mesh) -> None:
    """A state whose shardings are fixed otherwise going in than coming out has both."""

    def step(state: Any, x: Any) -> Any:
        return {"w": state["w"] - x.sum() * 0.1}, x

    donating = jax.jit(step, donate_argnums=0)
    shardings = {"in_shardings": ({"w": P("batch")}, None), "out_shardings": ({"w": P()}, None)}
    one = ps.auto_partition(mesh, machine="tpu_v5e", **shardings)(donating)
    state = {"w": jax.numpy.asarray(W)}
    assert one.plan(state, X).partition_specs[0][0]["w"] == P("batch")
    assert one.plan(state, X).collective_counts["all_gather"] == 1
    after, _ = one(state, X)
    assert after["w"].sharding.spec == P()
    np.testing.assert_allclose(after["w"], W - X.sum() * 0.1, rtol=1e-5)


def test_what_is_fixed_is_kept_in_files(mesh: jax.sharding.Mesh, tmp_path: pathlib.Path) -> None:
    """Bars and orders of axes are part of a saved plan."""
    one = fixed(mesh, (P(P.UNCONSTRAINED, None), P(("model", "batch"))), goals=[Smallest()])
    plan = one.plan(W, X)
    plan.save(tmp_path / "plan.json")
    again = fixed(mesh, None, schedule=ps.load_plan(tmp_path / "plan.json")).plan(W, X)
    assert {type(a).__name__ for a in again.actions} >= {"AxisOrder", "Close", "Tile"}
    assert (again.actions, again.partition_specs) == (plan.actions, plan.partition_specs)


def test_a_goal_of_ones_own() -> None:
    """Any object with `excess` and `objective`: here as few bytes at the peak as possible."""
    small, fast = plan_of(goals=[Smallest()], episodes=80), plan_of(episodes=80)
    assert small.cost.peak_bytes <= fast.cost.peak_bytes
    assert fast.cost.seconds <= small.cost.seconds
