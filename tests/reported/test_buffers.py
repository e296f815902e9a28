"""Donated buffers that are gone, or passed twice: an error with paths, before XLA runs.

XLA on several devices ends the process, so these run in the test process itself.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import partir_search as ps

pytestmark = pytest.mark.devices
SCHEDULE = [
    ps.ManualPartition({"batch": 0}, axis="batch"),
    ps.ManualPartition({"state/*/w1": 1}, axis="model"),
]


def step(state: Any, batch: Any) -> Any:
    def loss(w: Any) -> Any:
        return jnp.mean((jnp.tanh(batch["x"] @ w["w1"]) @ w["w2"]) ** 2)

    value, grads = jax.value_and_grad(loss)(state["params"])
    params = jax.tree.map(lambda w, g: w - 0.1 * g, state["params"], grads)
    ema = jax.tree.map(lambda e, w: 0.9 * e + 0.1 * w, state["ema"], params)
    return {"params": params, "ema": ema, "key": jax.random.fold_in(state["key"], 1)}, value


def weights() -> dict[str, Any]:
    keys = jax.random.split(jax.random.key(0))
    return {"w1": jax.random.normal(keys[0], (16, 32)), "w2": jax.random.normal(keys[1], (32, 8))}


def new_state() -> dict[str, Any]:
    return {"params": weights(), "ema": weights(), "key": jax.random.key(1)}


def new_batch() -> dict[str, Any]:
    return {"x": jnp.ones((16, 16))}


@pytest.fixture(scope="module")
def train(mesh: Mesh) -> Any:
    decorate = ps.auto_partition(mesh, schedule=SCHEDULE, machine="cpu", donate_argnums=0)
    return decorate(step)


@pytest.fixture(scope="module")
def shardings(train: Any) -> Any:
    return train.plan(new_state(), new_batch()).in_shardings[0]


def test_used_again(train: Any) -> None:
    """The state that a call took is passed again: of its own, or as it was made."""
    state, batch = train.init(new_state, new_batch()), new_batch()
    after, _ = train(state, batch)
    message = r"step: state/ema/w1 was donated to an earlier call, or deleted.*jnp.copy"
    with pytest.raises(RuntimeError, match=message):
        train(state, batch)
    mixed = {**after, "ema": {**after["ema"], "w2": state["ema"]["w2"]}}
    with pytest.raises(RuntimeError, match="step: state/ema/w2 was donated"):
        train(mixed, batch)
    train(after, batch)  # what was not passed is not lost


def test_gone_before_the_first_call(mesh: Mesh) -> None:
    """Nothing is planned for arguments that cannot be used, donated or not."""
    planned: list[int] = []
    f = ps.auto_partition(mesh, machine="cpu", episodes=3, progress=lambda r: planned.append(1))(
        step
    )
    state, batch = new_state(), new_batch()
    batch["x"].delete()
    with pytest.raises(RuntimeError, match="step: batch/x was donated to an earlier call"):
        f(state, batch)
    assert not planned


def test_one_array_twice(train: Any, shardings: Any) -> None:
    """`ema = params`, on one device and as the plan has them."""
    params, batch = weights(), new_batch()
    twice = r"state/ema/w1 and state/params/w1 are one buffer, and state is donated: copy one"
    with pytest.raises(ValueError, match=twice):
        train({"params": params, "ema": params, "key": jax.random.key(0)}, batch)
    placed = jax.device_put(params, shardings[0]["params"])
    with pytest.raises(ValueError, match=twice):
        train({"params": placed, "ema": placed, "key": jax.random.key(0)}, batch)
    copied = {"params": params, "ema": jax.tree.map(jnp.copy, params), "key": jax.random.key(0)}
    _, value = train(copied, batch)
    np.testing.assert_allclose(
        value, step({**new_state(), "params": weights()}, batch)[1], rtol=1e-5
    )


def test_one_buffer_in_two_arrays(train: Any, shardings: Any, mesh: Mesh) -> None:
    """`device_put` may give a new array on the same memory."""
    batch = new_batch()
    placed = jax.device_put(new_state(), shardings[0])
    other = Mesh(mesh.devices, ("a", "b"))
    w2 = placed["params"]["w2"]
    assert w2.sharding.spec == P("model")
    alias = jax.device_put(w2, NamedSharding(other, P("b")))
    assert alias is not w2
    assert alias.addressable_data(0).unsafe_buffer_pointer() == (
        w2.addressable_data(0).unsafe_buffer_pointer()
    )
    with pytest.raises(ValueError, match="state/ema/w2 and state/params/w2 are one buffer"):
        train({**placed, "ema": {**placed["ema"], "w2": alias}}, batch)
    whole = jnp.arange(512.0).reshape(16, 32)
    copies = jax.device_put(whole, NamedSharding(mesh, P()))  # the first of them is `whole`
    state = {**new_state(), "params": {**weights(), "w1": copies}}
    with pytest.raises(ValueError, match="state/ema/w1 and state/params/w1 are one buffer"):
        train({**state, "ema": {**weights(), "w1": whole}}, batch)


def test_after_other_calls(train: Any) -> None:
    """What a step returned is its own; what is made of it may not be."""
    batch = new_batch()
    state, _ = train(new_state(), batch)
    state, _ = train(state, batch)
    params = state["params"]
    with pytest.raises(ValueError, match="state/ema/w1 and state/params/w1 are one buffer"):
        train({**state, "ema": params}, batch)
    other = Mesh(params["w2"].sharding.mesh.devices, ("a", "b"))
    alias = jax.device_put(params["w2"], NamedSharding(other, P("b")))
    with pytest.raises(ValueError, match="state/ema/w2 and state/params/w2 are one buffer"):
        train({**state, "ema": {**state["ema"], "w2": alias}}, batch)


def test_donated_and_passed_beside(mesh: Mesh) -> None:
    """One argument is donated and its buffer is another argument, too."""

    def move(state: Any, target: Any) -> Any:
        return jax.tree.map(lambda s, t: 0.9 * s + 0.1 * t, state, target)

    f = ps.auto_partition(mesh, schedule=[], machine="cpu", donate_argnames="state")(move)
    w = weights()
    said = r"move: state/w1 and target/w1 are one buffer, and state is donated: .*target/w1"
    with pytest.raises(ValueError, match=said):
        f(w, w)
    replicated = jax.device_put(w, NamedSharding(mesh, P()))
    with pytest.raises(ValueError, match="state/w1 and target/w1 are one buffer"):
        f(replicated, {**w, "w1": replicated["w1"]})
    both = f(weights(), w)
    again = f(both, w)
    for name, x in w.items():
        np.testing.assert_allclose(again[name], x, rtol=1e-5)
    g = ps.auto_partition(mesh, schedule=[], machine="cpu")(move)
    g(w, w)  # nothing is donated


def test_keys(train: Any) -> None:
    """A random key and its data are one buffer."""

    def f(state: Any) -> Any:
        return {"key": jax.random.split(state["key"])[0], "raw": state["raw"] + 1}

    mesh = train.plan(new_state(), new_batch()).mesh
    g = ps.auto_partition(mesh, schedule=[], machine="cpu", donate_argnums=0)(f)
    key = jax.random.key(0)
    with pytest.raises(ValueError, match="state/key and state/raw are one buffer"):
        g({"key": key, "raw": jax.random.key_data(key)})
    keys = {"key": jax.random.key(0), "raw": jax.random.PRNGKey(0)}
    once = g(keys)
    with pytest.raises(RuntimeError, match="state/key was donated"):
        g(keys if keys["key"].is_deleted() else {**once, "key": _deleted_key()})
    assert once["raw"].shape == (2,)


def _deleted_key() -> Any:
    key = jax.random.key(5)
    key.delete() if hasattr(key, "delete") else jax.random.key_data(key).delete()
    return key


def test_what_is_no_array_of_jax(train: Any) -> None:
    """Numpy arrays and numbers have no buffer to give away, however often they are passed."""
    rng = np.random.default_rng(0)
    w1 = rng.normal(size=(16, 32)).astype(np.float32)
    w2 = rng.normal(size=(32, 8)).astype(np.float32)
    params, kept = {"w1": w1, "w2": w2}, (w1.copy(), w2.copy())
    state = {"params": params, "ema": params, "key": jax.random.key(0)}
    want, value = step(state, new_batch())
    for _ in range(2):
        got, now = train({**state, "key": jax.random.key(0)}, new_batch())
        np.testing.assert_allclose(now, value, rtol=1e-5)
        np.testing.assert_allclose(got["ema"]["w1"], want["ema"]["w1"], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(w1, kept[0])
    np.testing.assert_array_equal(w2, kept[1])

    def count(n: Any, x: Any) -> Any:
        return jax.tree.map(lambda i: i + 1, n), x

    f = ps.auto_partition(
        train.plan(new_state(), new_batch()).mesh, schedule=[], machine="cpu", donate_argnums=0
    )(count)
    assert jax.tree.leaves(f({"a": 0, "b": 0}, 0)) == [1, 1, 0]


def test_empty_arrays_share_nothing(mesh: Mesh) -> None:
    """Arrays without bytes may have one address."""
    f = ps.auto_partition(mesh, schedule=[], machine="cpu", donate_argnums=0)(
        lambda s: jax.tree.map(lambda x: x + 1, s)
    )
    made = f({"a": jnp.zeros((0, 4)), "b": jnp.zeros((0, 4))})
    assert made["a"].shape == f(made)["b"].shape == (0, 4)


@pytest.mark.parametrize("given", [{"donate_argnums": 0}, {"donate_argnames": "state"}, {}])
def test_beside_a_jitted_function(mesh: Mesh, given: dict[str, Any]) -> None:
    """As `jax.jit` around `jax.jit`: the outer word counts, or the inner one where it is silent."""
    jitted = jax.jit(step, donate_argnums=() if given else 1)
    train = ps.auto_partition(mesh, schedule=SCHEDULE, machine="cpu", **given)(jitted)
    state, batch = new_state(), new_batch()
    plan = train.plan(state, batch)
    count = len(jax.tree.leaves(state))
    assert plan.module.donated == (set(range(count)) if given else {count})
    state, batch = jax.device_put((state, batch), plan.in_shardings[0])
    train(state, batch)
    assert all(x.is_deleted() == bool(given) for x in jax.tree.leaves(state))
