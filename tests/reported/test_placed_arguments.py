"""Arguments that live elsewhere than the plan has them, under whatever mesh is set."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

import partir_search as ps

pytestmark = pytest.mark.devices
SCHEDULE = [
    ps.ManualPartition({"batch": 0}, axis="batch"),
    ps.ManualPartition({"state/w1": 1}, axis="model"),
]


def step(state: Any, batch: Any) -> Any:
    def loss(w: Any) -> Any:
        return jnp.mean((jnp.tanh(batch["x"] @ w["w1"]) @ w["w2"]) ** 2)

    weights = {"w1": state["w1"], "w2": state["w2"]}
    value, grads = jax.value_and_grad(loss)(weights)
    new = jax.tree.map(lambda w, g: w - 0.1 * g, weights, grads)
    return {**new, "key": jax.random.fold_in(state["key"], 1)}, value


def make_args() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    w1 = rng.normal(size=(16, 32)).astype(np.float32)
    w2 = rng.normal(size=(32, 8)).astype(np.float32)
    state = {"w1": w1, "w2": w2, "key": jax.random.key(3)}
    return state, {"x": rng.normal(size=(16, 16)).astype(np.float32)}


def same(got: Any, want: Any) -> None:
    for (path, a), b in zip(
        jax.tree_util.tree_leaves_with_path(want), jax.tree.leaves(got), strict=True
    ):
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-6, err_msg=str(path))


def mesh_of(shape: tuple[int, ...], names: tuple[str, ...], kind: Any, order: int = 1) -> Mesh:
    devices = np.array(jax.devices()[: int(np.prod(shape))][::order]).reshape(shape)
    return Mesh(devices, names, axis_types=(kind,) * len(shape))


def put(tree: Any, mesh: Mesh, kind: str = "device") -> Any:
    """Every leaf on the mesh's first axis where that divides its first dim."""

    def one(x: Any) -> Any:
        shape = np.shape(x)
        rows = P(mesh.axis_names[0]) if shape and shape[0] % mesh.devices.shape[0] == 0 else P()
        return jax.device_put(x, NamedSharding(mesh, rows, memory_kind=kind))

    return jax.tree.map(one, tree)


PLACES: dict[str, Callable[[Any], Any]] = {
    "numpy": lambda t: t,
    "one device": lambda t: jax.device_put(t, jax.devices()[5]),
    "a device outside": lambda t: jax.device_put(t, jax.devices()[12]),
    "explicit, other names": lambda t: put(t, mesh_of((2, 4), ("a", "b"), AxisType.Explicit)),
    "explicit, one axis": lambda t: put(t, mesh_of((8,), ("all",), AxisType.Explicit)),
    "explicit, sizes swapped": lambda t: put(
        t, mesh_of((4, 2), ("batch", "model"), AxisType.Explicit)
    ),
    "auto, other names": lambda t: put(t, mesh_of((2, 4), ("a", "b"), AxisType.Auto)),
    "auto, other order": lambda t: put(t, mesh_of((2, 4), ("batch", "model"), AxisType.Auto, -1)),
    "part of the mesh": lambda t: put(t, mesh_of((2, 2), ("batch", "model"), AxisType.Explicit)),
    "more devices": lambda t: put(t, mesh_of((16,), ("all",), AxisType.Auto)),
    "host memory": lambda t: put(
        t, mesh_of((2, 4), ("batch", "model"), AxisType.Auto), "pinned_host"
    ),
}


@pytest.fixture(scope="module", params=[AxisType.Auto, AxisType.Explicit], ids=["auto", "explicit"])
def steps(request: pytest.FixtureRequest) -> Any:
    mesh = mesh_of((2, 4), ("batch", "model"), request.param)
    return ps.auto_partition(mesh, schedule=SCHEDULE, machine="cpu")(step), mesh


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES.keys())
def test_placed_anywhere(steps: Any, place: Callable[[Any], Any]) -> None:
    """Arguments come from anywhere; results lie where the plan has them."""
    f, mesh = steps
    args = make_args()
    state, value = f(*map(place, args))
    same((state, value), step(*args))
    for x, s in zip(
        jax.tree.leaves(state), jax.tree.leaves(f.plan(*args).in_shardings[0][0]), strict=True
    ):
        assert x.sharding == s
        assert s.mesh == Mesh(mesh.devices, mesh.axis_names)


def test_equal_blocks_on_another_mesh(steps: Any) -> None:
    """A layout that agrees, on axes of other names or types: the type keeps the other mesh."""
    f, _ = steps
    args = make_args()
    other = mesh_of((2, 4), ("rows", "columns"), AxisType.Explicit)
    specs = f.plan(*args).partition_specs[0]

    def rename(x: Any, spec: Any) -> Any:
        names = {"batch": "rows", "model": "columns", None: None}
        return jax.device_put(x, NamedSharding(other, P(*(names[n] for n in spec))))

    placed = jax.tree.map(rename, args, tuple(specs))
    assert placed[0]["w1"].sharding.spec == P(None, "columns")
    same(f(*placed), step(*args))


@pytest.mark.parametrize(
    "context",
    [
        lambda mesh: jax.set_mesh(mesh),
        lambda mesh: jax.set_mesh(mesh_of((8,), ("all",), AxisType.Explicit)),
        lambda mesh: jax.set_mesh(mesh_of((4,), ("part",), AxisType.Auto)),
        lambda mesh: jax.sharding.use_abstract_mesh(mesh.abstract_mesh),
    ],
    ids=["own", "another", "smaller", "abstract"],
)
def test_under_a_mesh(steps: Any, context: Any) -> None:
    """Calls, lowering and `init` do not depend on the mesh that is set around them."""
    f, mesh = steps
    args = make_args()
    want = step(*args)
    with context(mesh):
        same(f(*args), want)
        state = f.init(lambda: {**make_args()[0], "w1": jnp.ones((16, 32))}, args[1])
        again, _ = f(state, args[1])
        f(again, args[1])
        assert "all_reduce" in f.lower(*args).as_text()
    same(f(*args), want)


def test_one_axis_split_in_parts_under_a_mesh() -> None:
    """The program's own mesh has more axes than the user's where an axis tiles two dims."""
    mesh = mesh_of((8,), ("all",), AxisType.Explicit)

    def f(w: Any, x: Any) -> Any:
        return x.reshape(-1, 2, 8) @ w, w + 1

    w, x = np.ones((8, 4), np.float32), np.arange(8 * 16, dtype=np.float32).reshape(8, 16)
    g = ps.auto_partition(mesh, schedule=[ps.ManualPartition({"x": 0}, axis="all")], machine="cpu")(
        f
    )
    with jax.set_mesh(mesh_of((4,), ("part",), AxisType.Explicit)):
        same(g(w, x), f(w, x))


class TestWarning:
    """One warning where every call moves what the user has put elsewhere."""

    def make(self) -> tuple[Any, Any, Any]:
        mesh = mesh_of((2, 4), ("batch", "model"), AxisType.Auto)
        state, batch = make_args()
        return ps.auto_partition(mesh, schedule=SCHEDULE, machine="cpu")(step), state, batch

    def calls(self, *argss: tuple[Any, Any]) -> list[str]:
        f = self.make()[0]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for args in argss:
                f(*args)
        return [str(w.message) for w in caught]

    def test_says_path_and_places_once(self) -> None:
        _, state, batch = self.make()
        there = put(state, mesh_of((4, 2), ("a", "b"), AxisType.Auto))
        (said,) = self.calls(*[(there, batch)] * 3)
        assert "step: state/w1 lives on" in said
        assert "mesh<a:4, b:2>" in said
        assert "and the plan has it on mesh<batch:2, model:4>" in said
        assert "it is moved in every call" in said
        assert "(2 arguments are)" in said
        assert "jax.device_put with plan.in_shardings" in said

    def test_names_one_device_and_host_memory(self) -> None:
        _, state, batch = self.make()
        fifth = jax.device_put(batch, jax.devices()[5])
        (said,) = self.calls(*[(state, fifth)] * 2)
        assert "batch/x lives on TFRT_CPU_5" in said or "batch/x lives on cpu:5" in said.lower()
        host = put(batch, mesh_of((2, 4), ("batch", "model"), AxisType.Auto), "pinned_host")
        (said,) = self.calls(*[(state, host)] * 2)
        assert "in pinned_host memory" in said

    def test_is_silent_where_nothing_moves_each_time(self) -> None:
        f, state, batch = self.make()
        fresh = jax.tree.map(jnp.asarray, (state, batch))
        assert not self.calls((state, batch), (state, batch))
        assert not self.calls(fresh, fresh, fresh)
        placed = jax.device_put((state, batch), f.plan(state, batch).in_shardings[0])
        assert not self.calls(placed, placed)
        mesh = mesh_of((2, 4), ("a", "b"), AxisType.Explicit)
        same_blocks = jax.device_put(batch, NamedSharding(mesh, P("a")))
        assert not self.calls((placed[0], same_blocks), (placed[0], same_blocks))

    def test_is_silent_of_a_state_that_comes_back(self) -> None:
        f, state, batch = self.make()
        state = jax.device_put(state, SingleDeviceSharding(jax.devices()[3]))
        for _ in range(3):
            state, _ = f(state, batch)


def test_nothing_leaks_into_the_context() -> None:
    """The step clears the mesh that is set for its own trace alone."""
    mesh = mesh_of((8,), ("all",), AxisType.Auto)
    f = ps.auto_partition(mesh, schedule=[], machine="cpu")(lambda x: x * 2)
    with contextlib.ExitStack() as stack:
        stack.enter_context(jax.set_mesh(mesh))
        f(np.ones(8, np.float32))
        assert jax.sharding.get_abstract_mesh() == mesh.abstract_mesh
