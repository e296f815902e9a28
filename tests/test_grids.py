"""Two- and three-dimensional tensor parallelism: the published collectives and bytes, no others."""

from __future__ import annotations

import collections
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import partir_search as ps
from models import training
from models.catalog import MODELS
from tests.lowering.test_rings import plain_optimizer
from tests.support import assert_same, floats_of

B, S, D, F = 4, 4, 8, 16


def mlp(state: dict[str, Any], x: Any) -> tuple[dict[str, Any], Any]:
    """One step of two matrices and of what comes in."""

    def loss(state: dict[str, Any], x: Any) -> Any:
        y = jnp.tanh(x @ state["w1"]) @ state["w2"]
        return jnp.sum(y * y)

    grads, dx = jax.grad(loss, (0, 1))(state, x)
    return jax.tree.map(lambda w, g: w - 0.1 * g, state, grads), x - 0.1 * dx


def run(tactics: list[Any], shape: dict[str, int]) -> tuple[ps.Plan, dict[tuple[str, str], int]]:
    """A plan of the MLP whose results are the plain ones; its collectives by kind and axis."""
    w1, w2, x = floats_of((D, F), (F, D), (B, S, D))
    state = {"w1": w1, "w2": w2}
    mesh = jax.make_mesh(tuple(shape.values()), tuple(shape), devices=jax.devices()[:8])
    step = ps.auto_partition(mesh, machine="h100", schedule=tactics)(mlp)
    plan = step.plan(state, x)
    got = jax.block_until_ready(step(state, x))
    assert_same(jax.tree.leaves(got), jax.tree.leaves(mlp(state, x)))
    found = collections.Counter((c.kind, ",".join(c.axes)) for c in plan.collectives)
    return plan, dict(found)


@pytest.mark.devices
@pytest.mark.parametrize("hold", [True, False])
def test_three_dims(hold: bool) -> None:
    """Of each linear 3 gathers and 3 scatters, 2(q-1)/q^3 (MN + NK + MK) words; layouts alternate.
    What is not held is gathered again: the matrix, and the product's input.
    """
    tactics = [
        ps.TensorParallel3D(("i", "j", "l"), hold=hold),
        ps.ManualPartition({"x": 1}, axis="j"),
    ]
    plan, _ = run(tactics, {"i": 2, "j": 2, "l": 2})
    specs = {path: tuple(spec) for path, _, spec in plan.arguments()}
    assert specs == {
        "state/w1": (("l", "i"), "j"),
        "state/w2": (("j", "i"), "l"),
        "x": ("i", "j", "l"),
    }
    kinds = collections.Counter(c.kind for c in plan.collectives)
    assert kinds == {"all_gather": 6 if hold else 10, "reduce_scatter": 6}
    m, q = B * S, 2
    words = 2 * 2 * (q - 1) / q**3 * (m * D + D * F + m * F)
    again = 0 if hold else (q - 1) / q**3 * (m * D + m * F + 2 * D * F)
    assert plan.sent_bytes == 4 * (words + again)


@pytest.mark.devices
@pytest.mark.parametrize("hold", [True, False])
def test_two_dims(hold: bool) -> None:
    """SUMMA: (MN + NK) forward and again backward over r + c devices, and no sum is reduced."""
    tactics = [ps.Summa(("r", "c"), hold=hold), ps.ManualPartition({"x": 2}, axis="c")]
    plan, found = run(tactics, {"r": 2, "c": 4})
    specs = {path: tuple(spec) for path, _, spec in plan.arguments()}
    assert specs == {"state/w1": ("r", "c"), "state/w2": ("r", "c"), "x": ("r", None, "c")}
    times = 1 if hold else 2
    assert found == {
        ("all_gather", "c"): 2 * times,
        ("all_gather", "r"): 2 * times,
        ("reduce_scatter", "c"): 2,
        ("reduce_scatter", "r"): 2,
    }
    m = B * S
    inputs, matrices = (m * D + m * F) * 3 / 8, 2 * D * F * 1 / 8
    assert plan.sent_bytes == 4 * (times + 1) * (inputs + matrices)


@pytest.mark.devices
def test_train_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """A LLaMA: parameters are nowhere whole, the step is the plain one."""
    monkeypatch.setattr(training, "optimizer", plain_optimizer)
    entry = MODELS["llama-tiny"].resized(layers=1)
    args = jax.jit(lambda: entry.args(8))()
    mesh = jax.make_mesh((2, 2, 2), ("i", "j", "l"), devices=jax.devices()[:8])
    schedule = [ps.TensorParallel3D(("i", "j", "l"))]
    step = ps.auto_partition(mesh, machine="tpu_v5e", schedule=schedule)(entry.step)
    plan = step.plan(*args)
    matrices = [
        (path, value.type.shape, spec)
        for path, value, spec in plan.arguments()
        if path.startswith("state/params") and "kernel" in path
    ]
    assert matrices
    for path, dims, spec in matrices:
        axes = [a for d in spec if d for a in ((d,) if isinstance(d, str) else d)]
        assert np.prod([mesh.shape[a] for a in axes]) >= 4, (path, dims, spec)
    lowered = step.lower(*args)
    assert ps.stablehlo_counts(lowered.as_text()) == plan.collective_counts
    got = jax.block_until_ready(lowered.compile()(*args))
    assert_same(jax.tree.leaves(got), jax.tree.leaves(jax.jit(entry.step)(*args)), 2e-4)


def test_saved_plans_hold(tmp_path: Any) -> None:
    mesh = jax.sharding.AbstractMesh((2, 2, 2), ("i", "j", "l"))
    w1, w2, x = floats_of((D, F), (F, D), (B, S, D))

    def plan_of(schedule: Any) -> ps.Plan:
        return ps.auto_partition(mesh, machine="tpu_v5e", schedule=schedule)(mlp).plan(
            {"w1": w1, "w2": w2}, x
        )

    plan = plan_of([ps.TensorParallel3D(("i", "j", "l"))])
    plan.save(tmp_path / "plan.json")
    again = plan_of(ps.load_plan(tmp_path / "plan.json"))
    assert (again.actions, again.cost) == (plan.actions, plan.cost)
    assert ps.KeepGathered("i") in again.actions
