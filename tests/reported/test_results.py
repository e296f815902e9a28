"""Results are for ordinary code: on Auto axes, whatever the axes of the user's mesh."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import partir_search as ps

pytestmark = pytest.mark.devices
EXPLICIT = (AxisType.Explicit,) * 2
SCHEDULE = [
    ps.ManualPartition({"batch": 0}, axis="batch"),
    ps.ManualPartition({"state/params/w1": 1}, axis="model"),
]
TX = optax.sgd(0.1, momentum=0.9)


def loss(params: Any, batch: Any) -> Any:
    return jnp.mean((jnp.tanh(batch["x"] @ params["w1"]) @ params["w2"] - batch["y"]) ** 2)


def step(state: Any, batch: Any) -> Any:
    value, grads = jax.value_and_grad(loss)(state["params"], batch)
    updates, opt = TX.update(grads, state["opt"])
    return {"params": optax.apply_updates(state["params"], updates), "opt": opt}, value


def new_state() -> Any:
    keys = jax.random.split(jax.random.key(0))
    params = {"w1": jax.random.normal(keys[0], (16, 32)), "w2": jax.random.normal(keys[1], (32, 8))}
    return {"params": params, "opt": TX.init(params)}


def new_batch() -> Any:
    rng = np.random.default_rng(0)
    return {
        "x": rng.normal(size=(16, 16)).astype(np.float32),
        "y": rng.normal(size=(16, 8)).astype(np.float32),
    }


def explicit_mesh() -> Mesh:
    return jax.make_mesh((2, 4), ("batch", "model"), devices=jax.devices()[:8], axis_types=EXPLICIT)


@pytest.fixture(scope="module")
def partitioned() -> Any:
    decorate = ps.auto_partition(
        explicit_mesh(), schedule=SCHEDULE, machine="cpu", donate_argnums=0
    )
    return decorate(step)


NEXT_LINES: dict[str, Callable[[Any, Any], Any]] = {
    "product": lambda p, b: p["w1"] @ p["w2"],
    "product of itself": lambda p, b: p["w1"].T @ p["w1"],
    "slice": lambda p, b: p["w1"][:10, :10],
    "row": lambda p, b: p["w1"][3],
    "flat": lambda p, b: p["w1"].reshape(-1),
    "ravelled together": lambda p, b: jnp.concatenate([p["w1"].ravel(), p["w2"].ravel()]),
    "jitted loss": lambda p, b: jax.jit(loss)(p, b),
    "gradient": lambda p, b: jax.grad(loss)(p, b),
    "vmap": lambda p, b: jax.vmap(lambda x, y: loss(p, {"x": x, "y": y}))(b["x"], b["y"]),
    "norm": lambda p, b: optax.tree.norm(p),
    "average": lambda p, b: jax.tree.map(lambda w: 0.9 * w + 0.1 * w, p),
    "mean": lambda p, b: p["w1"].mean(),
    "broadcast": lambda p, b: p["w1"] + np.ones(32, np.float32),
    "numpy": lambda p, b: np.asarray(p["w1"]) + 1,
    "optimizer": lambda p, b: TX.update(p, TX.init(p))[0],
    "split": lambda p, b: jnp.split(p["w1"], 4, axis=1),
    "sort": lambda p, b: jnp.sort(p["w1"], axis=1),
    "index of the largest": lambda p, b: jnp.argmax(p["w1"], axis=1),
    "where": lambda p, b: jnp.where(p["w1"] > 0, p["w1"], 0.0),
    "scan": lambda p, b: jax.lax.scan(lambda c, w: (c + w.sum(), None), 0.0, p["w1"])[0],
    "indices": lambda p, b: p["w1"][jnp.array([1, 2])],
    "update": lambda p, b: p["w1"].at[0, :3].set(0.0),
}


@pytest.fixture(scope="module")
def results(partitioned: Any) -> Any:
    state, _ = partitioned(partitioned.init(new_state, new_batch()), new_batch())
    want, _ = step(new_state(), new_batch())
    assert state["params"]["w1"].sharding.spec == P(None, "model")
    return state["params"], want["params"]


@pytest.mark.parametrize("line", NEXT_LINES.values(), ids=NEXT_LINES.keys())
@pytest.mark.parametrize("legacy", [False, True], ids=["plain", "with mesh"])
def test_next_line(results: Any, line: Callable[[Any, Any], Any], legacy: bool) -> None:
    """Ordinary code on what a step returned."""
    got, want = results
    batch = new_batch()
    with contextlib.ExitStack() as stack:
        if legacy:
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore", DeprecationWarning)  # newer jax: use jax.set_mesh
            stack.enter_context(explicit_mesh())
        found = line(got, batch)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(line(want, batch)), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-5)


def test_all_shardings_agree(partitioned: Any) -> None:
    """Plan, `init`, results and restored arrays have equal shardings; no call moves any."""
    plan = partitioned.plan(new_state(), new_batch())
    state = partitioned.init(new_state, new_batch())
    wanted = jax.tree.leaves(plan.in_shardings[0][0])
    results = jax.tree.leaves(plan.out_shardings[0])
    abstract = [x.sharding for x in jax.tree.leaves(plan.abstract_state)]
    assert wanted == results == abstract == [x.sharding for x in jax.tree.leaves(state)]
    mesh = explicit_mesh()
    assert all(s.mesh == Mesh(mesh.devices, mesh.axis_names) for s in wanted)
    before = [x.addressable_data(0).unsafe_buffer_pointer() for x in jax.tree.leaves(state)]
    state, _ = partitioned(state, new_batch())
    assert [x.sharding for x in jax.tree.leaves(state)] == wanted
    after = [x.addressable_data(0).unsafe_buffer_pointer() for x in jax.tree.leaves(state)]
    assert sorted(before) == sorted(after)  # donated: the same memory


def test_within_set_mesh_types_are_the_meshs() -> None:
    """Jax takes no array of another mesh there; in and out of it calls agree with themselves."""
    mesh = explicit_mesh()
    f = ps.auto_partition(mesh, schedule=SCHEDULE, machine="cpu")(step)
    batch = new_batch()
    want, value = step(new_state(), batch)
    with jax.set_mesh(mesh):
        plan = f.plan(new_state(), batch)
        state = f.init(new_state, batch)
        state, got = f(state, batch)
        np.testing.assert_allclose(got, value, rtol=1e-5)
        assert state["params"]["w1"].sharding.mesh == mesh
        assert state["params"]["w1"].sharding == plan.in_shardings[0][0]["params"]["w1"]
        np.testing.assert_allclose(optax.tree.norm(state), optax.tree.norm(want), rtol=1e-5)
        again, _ = f(state, batch)
    outside, _ = f(again, batch)
    assert outside["params"]["w1"].sharding.mesh == Mesh(mesh.devices, mesh.axis_names)
    outside["params"]["w1"] @ outside["params"]["w2"]


def test_explicit_results_on_request() -> None:
    """`explicit_results=True` keeps the user's axes, and with them types; False never does."""
    mesh = explicit_mesh()
    batch = new_batch()
    f = ps.auto_partition(mesh, schedule=SCHEDULE, machine="cpu", explicit_results=True)(step)
    state, _ = f(f.init(new_state, batch), batch)
    w1 = state["params"]["w1"]
    assert w1.sharding.mesh == mesh
    assert jax.typeof(w1).sharding.spec == P(None, "model")
    state, _ = f(state, batch)
    with pytest.raises(Exception, match=r"(?i)shard"):
        w1 @ state["params"]["w2"]
    never = ps.auto_partition(mesh, schedule=SCHEDULE, machine="cpu", explicit_results=False)(step)
    with jax.set_mesh(mesh):
        state, _ = never(new_state(), batch)
    assert state["params"]["w1"].sharding.mesh == Mesh(mesh.devices, mesh.axis_names)
    with pytest.raises(ValueError, match="explicit_results is one of"):
        ps.auto_partition(mesh, explicit_results="yes")  # type: ignore[arg-type]


def test_abstract_meshes() -> None:
    """Shardings of a plan without devices are on Auto axes, too."""
    mesh = AbstractMesh((2, 4), ("batch", "model"), axis_types=EXPLICIT)
    auto = AbstractMesh((2, 4), ("batch", "model"), axis_types=(AxisType.Auto,) * 2)
    f = ps.auto_partition(mesh, schedule=SCHEDULE, machine="tpu_v5e")(step)
    structs = jax.eval_shape(lambda: (new_state(), jax.tree.map(jnp.asarray, new_batch())))
    plan = f.plan(*structs)
    sharding = plan.in_shardings[0][0]["params"]["w1"]
    assert sharding == NamedSharding(auto, P(None, "model"))
    assert "all_reduce" in f.lower(*structs).as_text()


def test_parts_of_axes_and_fixed_shardings() -> None:
    """Results that are tiled by a part of an axis; shardings given on the Explicit mesh."""
    mesh = explicit_mesh()
    given = NamedSharding(mesh, P("batch"))
    f = ps.auto_partition(
        mesh, schedule=[], machine="cpu", in_shardings=(given,), out_shardings=given
    )(lambda x: x.reshape(16, 2, 8) * 2)
    x = np.arange(256, dtype=np.float32).reshape(16, 16)
    y = f(jax.device_put(x, given))
    assert y.sharding == NamedSharding(Mesh(mesh.devices, mesh.axis_names), P("batch"))
    np.testing.assert_array_equal(y.reshape(16, 16)[:, :3], x[:, :3] * 2)
    one = jax.make_mesh((8,), ("all",), devices=jax.devices()[:8], axis_types=EXPLICIT[:1])
    g = ps.auto_partition(one, schedule=[ps.ManualPartition({"x": 0}, axis="all")], machine="cpu")(
        lambda x: x.reshape(2, 8, 16)[:, ::2] + 1
    )
    np.testing.assert_array_equal(g(x)[0, 1:3] @ np.ones(16), (x[[2, 4]] + 1).sum(1))


def test_plan_for_plain_jit() -> None:
    """`plan.in_shardings` and `plan.constrained` are for plain `jax.jit` on any mesh."""
    f = ps.auto_partition(explicit_mesh(), schedule=SCHEDULE, machine="cpu")(step)
    args = new_state(), new_batch()
    plan = f.plan(*args)
    want = step(*args)[1]
    placed = jax.device_put(args, plan.in_shardings[0])
    jitted = jax.jit(step, in_shardings=plan.in_shardings[0], out_shardings=plan.out_shardings)
    np.testing.assert_allclose(jitted(*placed)[1], want, rtol=1e-5)
    by_hand = jax.jit(plan.constrained(), in_shardings=plan.in_shardings[0])
    np.testing.assert_allclose(by_hand(*placed)[1], want, rtol=1e-5)
