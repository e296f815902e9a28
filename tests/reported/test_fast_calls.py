"""Calls like an earlier one go straight to jax; all others take the road of a first call."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import partir_search as ps
from partir_search.calling import fast_calls

pytestmark = pytest.mark.devices
SCHEDULE = [ps.ManualPartition({"batch": 0}, axis="batch")]


def train(state: Any, batch: Any, scale: int = 1) -> Any:
    """A step with a key, an integer and a static argument."""
    key, noise_key = jax.random.split(state["key"])
    loss = jnp.mean((batch @ state["w"]) ** 2) + jax.random.normal(noise_key)
    w = state["w"] - 0.1 * scale * loss
    return {"w": w, "key": key, "count": state["count"] + 1}, loss


def new_state() -> dict[str, Any]:
    return {"w": jnp.linspace(0, 1, 16).reshape(4, 4), "key": jax.random.key(0), "count": 0}


def batch(rows: int = 8) -> Any:
    return np.arange(4.0 * rows, dtype=np.float32).reshape(rows, 4) / rows


class Calls:
    """A partitioned step beside `jax.jit`, with the number of calls that were not fast."""

    def __init__(self, mesh: Any, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        options = {"schedule": SCHEDULE, "machine": "cpu", "donate_argnums": 0, **options}
        self.step = ps.auto_partition(mesh, static_argnames="scale", **options)(train)
        self.plain = jax.jit(train, static_argnames="scale")
        self.slow = 0
        make = self.step._form

        def counted(*args: Any) -> Any:
            self.slow += 1
            return make(*args)

        monkeypatch.setattr(self.step, "_form", counted)
        self.state, self.expected = new_state(), new_state()

    def __call__(self, batch: Any, slow: bool, **static: Any) -> Any:
        """One step of both; the results must agree, and the call be slow or fast."""
        before = self.slow
        self.state, loss = self.step(self.state, batch, **static)
        self.expected, wanted = self.plain(self.expected, np.asarray(batch), **static)
        np.testing.assert_allclose(loss, wanted, rtol=1e-5)
        np.testing.assert_allclose(self.state["w"], self.expected["w"], rtol=1e-5)
        assert int(self.state["count"]) == int(self.expected["count"])
        assert self.slow - before == int(slow)
        return loss


@pytest.fixture
def calls(mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(mesh, monkeypatch)


def test_second_signature_is_fast(calls: Calls) -> None:
    """A Python number becomes an array after the first step; then nothing changes."""
    calls(batch(), slow=True)
    calls(batch(), slow=True)
    for _ in range(3):
        calls(batch(), slow=False)


def test_other_batches(calls: Calls, mesh: Mesh) -> None:
    """Arrays anywhere, other shapes and types; each signature keeps its own compiled call."""
    for _ in range(2):
        calls(batch(), slow=True)
    plan = calls.step.plan(calls.state, batch())
    placed = jax.device_put(batch(), plan.in_shardings[0][1])
    assert placed.sharding.spec == P("batch")
    calls(placed, slow=True)  # of another class than a numpy array
    calls(placed, slow=False)
    calls(jax.device_put(batch(), plan.in_shardings[0][1]), slow=False)
    calls(jnp.asarray(batch()), slow=False)  # on no device in particular: moved
    calls(jnp.asarray(batch()), slow=False)
    calls(jax.device_put(batch(), NamedSharding(mesh, P("model"))), slow=True)
    equal = NamedSharding(placed.sharding.mesh, P("batch", None))
    calls(jax.device_put(batch(), equal), slow=False)
    for slow in (True, False):
        calls(jnp.asarray(batch(16)), slow=slow)
    calls(jnp.asarray(batch()), slow=False)
    calls(jnp.asarray(batch()).astype(jnp.bfloat16), slow=True)
    calls(jnp.asarray(batch()), slow=False)


def test_static_arguments(calls: Calls) -> None:
    for _ in range(2):
        calls(batch(), slow=True, scale=2)
    calls(batch(), slow=False, scale=2)
    calls(batch(), slow=True, scale=3)
    calls(batch(), slow=True)
    calls(batch(), slow=False, scale=2)
    with pytest.raises(TypeError, match=r"static argument .scale. is a list"):
        calls.step(calls.state, batch(), scale=[2])


def test_state_made_anew(calls: Calls) -> None:
    """A state that no call returned is checked, moved and used; a donated one is an error."""
    for slow in (True, True, False):
        calls(batch(), slow=slow)
    gone = calls.state
    calls(batch(), slow=False)
    with pytest.raises(RuntimeError, match="train: state/count was donated to an earlier call"):
        calls.step(gone, batch())
    kept = calls.state
    calls.state = {**kept, "w": jnp.ones((4, 4))}
    calls.expected = {**calls.expected, "w": jnp.ones((4, 4))}
    calls(batch(), slow=False)
    calls(batch(), slow=False)


def test_under_transformations(calls: Calls) -> None:
    """Tracers never reach the compiled call, also in place of leaves that are expected."""
    for slow in (True, True, False):
        calls(batch(), slow=slow)
    state, before = calls.state, calls.slow

    @jax.jit
    def twice(state: Any) -> Any:
        return calls.step(calls.step(state, batch())[0], batch())

    after, loss = twice(state)
    assert calls.slow == before + 2
    expected, wanted = calls.plain(calls.plain(calls.expected, batch())[0], batch())
    np.testing.assert_allclose(loss, wanted, rtol=1e-5)
    np.testing.assert_allclose(after["w"], expected["w"], rtol=1e-5)


def test_explicit_axes(mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within and outside of `jax.set_mesh` a call has other types, and its own compiled call."""
    explicit = Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Explicit,) * 2)
    calls = Calls(explicit, monkeypatch)
    for slow in (True, True, False):
        calls(batch(), slow=slow)
    with jax.set_mesh(explicit):
        calls(batch(), slow=True)
        calls(batch(), slow=False)
        assert jax.typeof(calls.state["w"]).sharding.mesh == explicit.abstract_mesh
    calls(batch(), slow=True)
    calls(batch(), slow=False)


def test_arguments_of_one_type_of_tree(mesh: Mesh) -> None:
    """Other keys, and a pytree where an array was, are other signatures."""
    f = ps.auto_partition(mesh, schedule=[], machine="cpu")(lambda x: jax.tree.leaves(x)[-1] * 2)
    one = jnp.ones(4)
    for _ in range(2):
        assert float(f({"a": one, "b": 3 * one})[0]) == 6
        assert float(f({"a": one, "c": 4 * one})[0]) == 8
        assert float(f({"a": one, "b": {"d": one, "e": 5 * one}})[0]) == 10
        assert float(f([one])[0]) == 2


# Functions that donate nothing -----------------------------------------------------------------


def evaluate(state: Any, batch: Any) -> Any:
    return jnp.mean((batch @ state["w"]) ** 2) + state["count"]


class Evaluations:
    """A step that donates nothing, with counts of calls that were not direct and not fast."""

    def __init__(self, mesh: Any, monkeypatch: pytest.MonkeyPatch, function: Any = evaluate):
        self.step = ps.auto_partition(mesh, schedule=SCHEDULE, machine="cpu")(function)
        self.function, self.checked, self.slow = function, 0, 0
        make, leaves = self.step._form, fast_calls.FastCall.leaves

        def slow(*args: Any) -> Any:
            self.slow += 1
            return make(*args)

        def checked(*args: Any) -> Any:
            self.checked += 1
            return leaves(*args)

        monkeypatch.setattr(self.step, "_form", slow)
        monkeypatch.setattr(fast_calls.FastCall, "leaves", checked)

    def __call__(self, state: Any, batch: Any) -> str:
        """How a call is made, "slow", "checked" or "direct"; the result must be the function's."""
        slow, checked = self.slow, self.checked
        found = self.step(state, batch)
        wanted = self.function(jax.device_get(state), np.asarray(batch))
        np.testing.assert_allclose(found, wanted, rtol=1e-5)
        if self.slow > slow:
            return "slow"
        return "checked" if self.checked > checked else "direct"


def eval_state() -> dict[str, Any]:
    return {"w": jnp.linspace(0, 1, 16).reshape(4, 4), "count": 2}


def test_what_donates_nothing_is_checked_by_jax(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numpy arrays, arrays on no device in particular, and arrays in place; numbers as well."""
    calls = Evaluations(mesh, monkeypatch)
    assert [calls(eval_state(), batch()) for _ in range(3)] == ["slow", "direct", "direct"]
    shardings = calls.step.plan(eval_state(), batch()).in_shardings[0]
    placed = jax.device_put((eval_state(), batch()), shardings)
    assert calls({**eval_state(), "count": 5}, batch()) == "direct"
    for _ in range(2):
        assert calls({**eval_state(), "w": placed[0]["w"]}, placed[1]) == "direct"
    (entry,) = calls.step._entries.values()
    assert entry.direct._cache_size() == 1  # compiled once


@pytest.mark.parametrize("where", ["model", "one device"])
def test_arrays_elsewhere_are_moved_and_noted(
    where: str, mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Evaluations(mesh, monkeypatch)
    state = {**eval_state(), "count": jnp.asarray(2)}
    for way in ("slow", "direct"):
        assert calls(state, jnp.asarray(batch())) == way
    other = NamedSharding(mesh, P("model")) if where == "model" else jax.devices()[3]
    away = jax.device_put(batch(), other)
    assert calls(state, away) == "slow"
    with pytest.warns(UserWarning, match="moved"):
        assert calls(state, away) == "slow"


def test_other_types_and_trees_are_other_calls(mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Evaluations(mesh, monkeypatch)
    state = eval_state()
    assert [calls(state, batch()) for _ in range(2)] == ["slow", "direct"]
    assert calls(state, batch(16)) == "slow"
    for rows in (8, 16, 8):
        assert calls(state, batch(rows)) == "checked"
    assert calls({**state, "more": 1}, batch()) == "slow"
    with pytest.raises(TypeError, match="ShapeDtypeStruct"):
        calls.step(state, jax.ShapeDtypeStruct((8, 4), jnp.float32))


def test_deleted_arrays_are_named(mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Evaluations(mesh, monkeypatch)
    for way in ("slow", "direct"):
        gone = eval_state()
        assert calls(gone, batch()) == way
    gone["w"].delete()
    with pytest.raises(RuntimeError, match=r"evaluate: state/w was donated .*or deleted"):
        calls.step(gone, batch())
    assert calls(eval_state(), batch()) != "slow"


def test_transformations_of_what_donates_nothing(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tracers of jit, grad and vmap take the checked road, whatever came before."""
    calls = Evaluations(mesh, monkeypatch)
    state = {"w": eval_state()["w"], "count": jnp.asarray(2.0)}
    for way in ("slow", "direct"):
        assert calls(state, batch()) == way
    found = jax.jit(calls.step)(state, batch())
    np.testing.assert_allclose(found, evaluate(state, batch()), rtol=1e-5)
    with pytest.warns(UserWarning, match="is not partitioned where it is called under jax.grad"):
        gradient = jax.grad(calls.step)(state, batch())
    np.testing.assert_allclose(gradient["w"], jax.grad(evaluate)(state, batch())["w"], rtol=1e-5)
    many = np.stack([batch(), 2 * batch()])
    found = jax.vmap(calls.step, in_axes=(None, 0))(state, many)
    np.testing.assert_allclose(found, [evaluate(state, b) for b in many], rtol=1e-5)


def test_effects_happen_once(mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function with a callback is no direct call: jax could refuse it after it has begun."""
    seen: list[float] = []

    def noted(state: Any, batch: Any) -> Any:
        loss = evaluate(state, batch)
        jax.debug.callback(lambda x: seen.append(float(x)), loss)
        return loss

    step = ps.auto_partition(mesh, schedule=SCHEDULE, machine="cpu")(noted)
    for count in (1, 2, 3):
        jax.block_until_ready(step(eval_state(), batch()))
        jax.effects_barrier()
        assert len(seen) in (count, 8 * count)
