"""Mutable refs as arguments of a step: they are changed in place, where the plan wants them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import partir_search as ps
from partir_search.frontends.refs import have_refs
from tests.reported.test_mutable_refs import FOUR_TWO, planned
from tests.support import device_mesh, floats_of

W, X = floats_of((32, 64), (64, 32))


def loss(w: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.mean((jnp.tanh(x @ w) @ w.T - x) ** 2)


def arrays() -> dict[str, Any]:
    key = jax.random.key(0)
    return {"w": W, "momentum": jnp.zeros_like(W), "steps": jnp.int32(0), "rate": 0.1, "key": key}


def refs() -> dict[str, Any]:
    return jax.tree.map(jax.new_ref, {k: jnp.asarray(x) for k, x in arrays().items()})


def step(state: dict[str, Any], x: jax.Array) -> jax.Array:
    """Momentum; the rate is only read."""
    state["key"][...], own = jax.random.split(state["key"][...])
    x = x * jax.random.bernoulli(own, 0.9, x.shape)
    value, grad = jax.value_and_grad(loss)(state["w"][...], x)
    state["momentum"][...] = 0.9 * state["momentum"][...] + grad
    state["w"][...] -= state["rate"][...] * state["momentum"][...]
    jax.ref.addupdate(state["steps"], ..., jnp.int32(1))
    return value


def carried(state: dict[str, Any], x: jax.Array) -> Any:
    """`step` with values."""
    key, own = jax.random.split(state["key"])
    x = x * jax.random.bernoulli(own, 0.9, x.shape)
    value, grad = jax.value_and_grad(loss)(state["w"], x)
    momentum = 0.9 * state["momentum"] + grad
    w, steps = state["w"] - state["rate"] * momentum, state["steps"] + 1
    new = {"w": w, "momentum": momentum, "steps": steps, "rate": state["rate"], "key": key}
    return new, value


@pytest.fixture(scope="module")
def auto() -> Any:
    return planned(step)


def held(state: dict[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    state = {k: r[...] for k, r in state.items()} | {"key": jax.random.key_data(state["key"][...])}
    return {k: np.asarray(x) for k, x in state.items()}


def assert_equal(got: dict[str, Any], want: dict[str, Any]) -> None:
    for k, x in held(want).items():
        np.testing.assert_allclose(held(got)[k], x, rtol=1e-4, atol=1e-5, err_msg=k)


@pytest.mark.devices
def test_state_in_refs(auto: Any) -> None:
    """Tilings, collectives and cost of the step with values; three steps as the plain ones."""
    state, plain = refs(), refs()
    plan = auto.plan(state, X)
    other = planned(carried, donate_argnums=0).plan(jax.tree.map(jnp.asarray, arrays()), X)
    assert plan.module.arg_paths == other.module.arg_paths
    assert "state/w" in plan.module.arg_paths
    assert plan.partition_specs == other.partition_specs
    assert plan.collective_counts == other.collective_counts
    assert plan.cost.seconds == pytest.approx(other.cost.seconds)
    assert plan.cost.peak_bytes == other.cost.peak_bytes
    for _ in range(3):
        assert float(auto(state, X)) == pytest.approx(float(jax.jit(step)(plain, X)), rel=1e-4)
    assert_equal(state, plain)
    specs = plan.partition_specs[0][0]
    assert any(specs["w"])
    assert {k: r.sharding.spec for k, r in state.items()} == specs


@pytest.mark.devices
def test_buffers_are_reused(auto: Any) -> None:
    """A ref that lies where the plan wants it is written in place."""
    state = auto.init(refs, X)
    assert state["w"].sharding == auto.plan(state, X).in_shardings[0][0]["w"]
    plain = refs()
    before = state["w"].sharding
    assert float(auto(state, X)) == pytest.approx(float(jax.jit(step)(plain, X)), rel=1e-4)
    assert state["w"].sharding == before
    assert_equal(state, plain)
    form = auto._form((state, X), {})
    entry = form.executables.entry(form.call, form.args, form.kwargs)
    with jax.set_mesh(device_mesh(FOUR_TWO)):
        text = entry.jitted.lower(*form.args).as_text()
    assert text.count("tf.aliasing_output") >= 4


@pytest.mark.devices
def test_other_ways_in(auto: Any) -> None:
    """Types of refs are enough to plan; `check`, `eval_shape` and `lower` change no ref."""
    state = refs()
    plan = auto.plan(jax.tree.map(jax.typeof, state), X)
    assert plan is auto.plan(state, X)
    assert auto.eval_shape(state, X) == jax.ShapeDtypeStruct((), jnp.float32)
    assert auto.check(state, X).ok
    auto.lower(state, X)
    assert int(state["steps"][...]) == 0
    np.testing.assert_array_equal(state["w"][...], W)


@pytest.mark.devices
def test_steps_in_one_program(auto: Any) -> None:
    """Under `jax.jit` and in a scan, refs are changed by the partitioned program."""

    @jax.jit
    def several(state: dict[str, Any], xs: jax.Array) -> jax.Array:
        return lax.scan(lambda c, x: (c, auto(state, x)), None, xs)[1]

    state, plain = auto.init(refs, X), refs()
    got = several(state, jnp.stack([X, 0.5 * X]))
    want = [float(jax.jit(step)(plain, x)) for x in (X, 0.5 * X)]
    np.testing.assert_allclose(got, want, rtol=1e-4)
    assert_equal(state, plain)


@pytest.mark.devices
def test_refs_among_arrays() -> None:
    """One ref beside arrays, given by name; another is only read, and stays what it is."""

    def scaled(x: jax.Array, *, buffers: dict[str, Any]) -> Any:
        buffers["sum"][1:3] += x[:2] * buffers["scale"] * buffers["read"][0]
        return {"y": x * buffers["read"][0], "none": None}

    def made() -> dict[str, Any]:
        total, read = jax.new_ref(jnp.zeros((8, 32))), jax.new_ref(2 * jnp.ones(3))
        return {"sum": total, "scale": jnp.float32(3), "read": read}

    # Donation of what is in refs, which jax does not run, changes nothing.
    auto, mine, plain = planned(scaled, donate_argnames="buffers"), made(), made()
    for _ in range(2):
        got = auto(X[:8], buffers=mine)
        want = jax.jit(scaled)(X[:8], buffers=plain)
        np.testing.assert_allclose(got["y"], want["y"], rtol=1e-6)
        assert got["none"] is None
    np.testing.assert_allclose(mine["sum"][...], plain["sum"][...], rtol=1e-6)
    np.testing.assert_array_equal(mine["read"][...], plain["read"][...])
    assert "buffers/sum" in auto.plan(X[:8], buffers=mine).module.arg_paths


def test_messages(auto: Any) -> None:
    """A ref that is passed twice, closed over or returned; types of refs that are to be run."""
    state = refs()
    same = {**state, "momentum": state["w"]}
    with pytest.raises(ValueError, match="appeared at both state/momentum and state/w"):
        auto.plan(same, X)
    with pytest.raises(TypeError, match=r"use .plan\(...\)"):
        auto(jax.tree.map(jax.typeof, state), X)
    ref = jax.new_ref(jnp.zeros(3))

    def closed(x: jax.Array) -> jax.Array:
        ref[...] += x
        return x

    with pytest.raises(ValueError, match=r"closes over a Ref\{float32\[3\]\}.*as an argument"):
        planned(closed).plan(jnp.ones(3))
    with pytest.raises(ValueError, match=r"Ref.*is returned.*return its value"):
        planned(lambda ref: ref).plan(ref)


def test_have_refs() -> None:
    ref = jax.new_ref(1.0)
    assert have_refs([1, ref])
    assert have_refs([jax.typeof(ref)])
    assert not have_refs([1, jnp.ones(3), None, "x", jax.ShapeDtypeStruct((), jnp.float32)])
    assert jax.jit(lambda r: have_refs([r]))(ref)
    assert not jax.jit(lambda x: have_refs([x]))(1.0)


def test_planning_without_devices() -> None:
    mesh = jax.sharding.AbstractMesh((4, 2), ("data", "model"))
    plan = ps.auto_partition(mesh, machine="tpu_v5e", schedule=[])(step).plan(refs(), X)
    assert [p for p in plan.module.result_paths if p.startswith("state")]
