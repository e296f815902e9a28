"""A state of weak types (`jnp.full(n, 2.0)`, Python numbers) and the same values restored."""

from __future__ import annotations

import pathlib
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

import partir_search as ps

pytestmark = pytest.mark.devices


def step(state: Any, x: Any) -> Any:
    def loss(p: Any) -> Any:
        return jnp.mean((x @ p["w"] * p["scale"] + p["bias"]) ** 2)

    value, grads = jax.value_and_grad(loss)(state["params"])
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, state["momentum"], grads)
    params = jax.tree.map(lambda p, m: p - 0.1 * m, state["params"], momentum)
    new = {"params": params, "momentum": momentum, "rate": state["rate"] * 0.5, "n": state["n"] + 1}
    return new, value * state["rate"]


def weak_state() -> Any:
    params = {"w": jnp.full((16, 32), 0.5), "scale": jnp.full(32, 2.0), "bias": jnp.full(32, 0.0)}
    zeros = jax.tree.map(lambda p: jnp.full(p.shape, 0.0), params)
    return {"params": params, "momentum": zeros, "rate": 1.0, "n": 0}


def restored(state: Any) -> Any:
    """The state as a checkpoint has it: numpy arrays, whose types are strong."""
    return jax.tree.map(lambda x: np.asarray(jnp.asarray(x)), state)


X = np.random.default_rng(0).normal(size=(16, 16)).astype(np.float32)


def assert_same(got: Any, want: Any) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for (path, b), a in zip(
        jax.tree_util.tree_leaves_with_path(want), jax.tree.leaves(got), strict=True
    ):
        assert (a.dtype, a.weak_type) == (b.dtype, b.weak_type), path
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6, err_msg=str(path))


def searches(mesh: Mesh, **options: Any) -> tuple[Any, list[int]]:
    """The step, and a list that grows by every episode of a search."""
    seen: list[int] = []
    f = ps.auto_partition(
        mesh, machine="tpu_v5e", episodes=4, progress=lambda r: seen.append(1), **options
    )(step)
    return f, seen


@pytest.mark.parametrize("weak_first", [True, False])
def test_planned_once(mesh: Mesh, weak_first: bool) -> None:
    """One search for both; results are as weak as those of `jax.jit`."""
    f, seen = searches(mesh)
    weak = weak_state()
    states = [weak, restored(weak)][:: 1 if weak_first else -1]
    for state in states:
        assert_same(f(state, X), jax.jit(step)(state, X))
    first, second = (f.plan(state, X) for state in states)
    assert first.partition_specs == second.partition_specs
    n = len(seen)
    mixed = {**weak, "params": {**weak["params"], "w": np.full((16, 32), 0.5, np.float32)}}
    assert_same(f(mixed, X), jax.jit(step)(mixed, X))
    assert len(seen) == n


def test_plans_that_are_given(mesh: Mesh, tmp_path: pathlib.Path) -> None:
    """A plan, a saved one and a cached one hold for both, silently."""
    f, _ = searches(mesh)
    weak = weak_state()
    plan = f.plan(weak, X)
    plan.save(tmp_path / "plan.json")
    cached, _ = searches(mesh, cache=tmp_path / "cache")
    cached.plan(weak, X)
    again, seen = searches(mesh, cache=tmp_path / "cache")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for schedule in (plan, ps.load_plan(tmp_path / "plan.json")):
            given = ps.auto_partition(mesh, machine="tpu_v5e", schedule=schedule)(step)
            state = restored(weak)
            assert_same(given(state, X), jax.jit(step)(state, X))
            assert given.plan(state, X).partition_specs == plan.partition_specs
        assert_same(again(restored(weak), X), jax.jit(step)(restored(weak), X))
    assert not seen


def test_loops_and_branches(mesh: Mesh) -> None:
    """Carries and branches whose types are weak or not."""

    def f(s: Any, x: Any) -> Any:
        def body(c: Any, r: Any) -> Any:
            return {"a": c["a"] * 0.5 + r.sum(), "n": c["n"] + 1}, c["a"]

        carry, out = jax.lax.scan(body, s, x)
        low = jax.lax.cond(carry["n"] > 3, lambda a: a * 2.0, lambda a: a, carry["a"])
        return jax.lax.while_loop(lambda c: c["n"] < 40, lambda c: {**c, "n": c["n"] + 2}, carry), (
            low,
            out,
        )

    weak = {"a": jnp.full((), 1.0), "n": 0}
    g = ps.auto_partition(
        mesh, schedule=[ps.ManualPartition({"x": 1}, axis="batch")], machine="cpu"
    )(f)
    strong = {"a": np.float32(1.0), "n": np.int32(0)}
    for s in (weak, strong, {"a": 1.0, "n": 0}):
        assert_same(g(s, X), jax.jit(f)(s, X))


def half(state: Any, x: Any) -> Any:
    """A weak rate leaves bfloat16 parameters as they are; a strong one makes them float32."""
    grads = jax.grad(lambda w: jnp.mean((x @ w).astype(jnp.float32) ** 2))(state["w"])
    return {"w": state["w"] - state["rate"] * grads, "rate": state["rate"] * 0.5}


def test_types_that_follow_from_weakness(mesh: Mesh) -> None:
    """Other ops follow from a strong type: the plan that there is still decides the layouts."""
    seen: list[int] = []
    f = ps.auto_partition(mesh, machine="tpu_v5e", episodes=4, progress=lambda r: seen.append(1))(
        half
    )
    w = jnp.full((16, 32), 0.5, jnp.bfloat16)
    x = X.astype(jnp.bfloat16)
    weak, strong = {"w": w, "rate": 0.5}, {"w": w, "rate": np.float32(0.5)}
    for state in (weak, strong):
        got, want = f(state, x), jax.jit(half)(state, x)
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_allclose(
                np.asarray(a, np.float32), np.asarray(b, np.float32), rtol=2e-2
            )
    assert f(weak, x)["w"].dtype != f(strong, x)["w"].dtype
    assert f.plan(weak, x).partition_specs == f.plan(strong, x).partition_specs
