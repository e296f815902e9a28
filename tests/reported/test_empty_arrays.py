"""Arrays without elements, anywhere: they are whole, and everything around them is tiled."""

from __future__ import annotations

import io
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from rich.console import Console

import partir_search as ps

pytestmark = pytest.mark.devices
ROWS = [
    ps.ManualPartition({"x": 0}, axis="batch"),
    ps.ManualPartition({"s/w": 1}, axis="model"),
]


def train(s: Any, x: Any) -> Any:
    value, grad = jax.value_and_grad(lambda w: jnp.mean((x @ w) ** 2))(s["w"])
    return {**s, "w": s["w"] - 0.1 * grad}, value


def array(*shape: int, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(0).normal(size=shape).astype(dtype)


X, W, NONE = array(16, 8), array(8, 16), array(0, 8)

PROGRAMS: dict[str, tuple[Callable[..., Any], Any, Any]] = {
    "in the state": (train, {"w": W, "e": NONE}, X),
    "used": (lambda s, x: (train(s, x)[0], s["e"] * 2 + 1, s["e"].sum()), {"w": W, "e": NONE}, X),
    "last dim": (lambda s, x: (train(s, x)[0], s["e"].T @ s["e"]), {"w": W, "e": array(8, 0)}, X),
    "product": (lambda s, x: (s["e"] @ s["w"], x @ s["w"]), {"w": W, "e": NONE}, X),
    "batch of products": (
        lambda s, x: (jnp.einsum("bij,jk->bik", s["e"], s["w"]), x @ s["w"]),
        {"w": W, "e": array(0, 4, 8)},
        X,
    ),
    "joined": (lambda s, x: jnp.concatenate([s["e"], x]) @ s["w"], {"w": W, "e": NONE}, X),
    "sliced away": (lambda s, x: (x[:0] @ s["w"], x @ s["w"]), {"w": W}, X),
    "scan of no steps": (
        lambda s, x: jax.lax.scan(lambda c, r: (c * 2, r @ c), s["w"], x[:0]),
        {"w": W},
        X,
    ),
    "empty carry": (
        lambda s, x: jax.lax.scan(lambda c, r: ((c[0], c[1] + 1), r @ c[0]), (s["w"], s["e"]), x),
        {"w": W, "e": NONE},
        X,
    ),
    "gathered": (lambda s, x: (x[s["i"]], x @ s["w"]), {"w": W, "i": np.zeros(0, np.int32)}, X),
    "scattered": (
        lambda s, x: jnp.asarray(x).at[s["i"]].add(1.0) @ s["w"],
        {"w": W, "i": np.zeros(0, np.int32)},
        X,
    ),
    "padded": (lambda s, x: jnp.pad(s["e"], ((4, 4), (0, 0))) @ s["w"], {"w": W, "e": NONE}, X),
    "reshaped": (lambda s, x: (s["e"].reshape(4, 0, 2), x @ s["w"]), {"w": W, "e": NONE}, X),
    "sorted": (lambda s, x: (jnp.sort(s["e"]), x @ s["w"]), {"w": W, "e": NONE}, X),
    "of other types": (
        lambda s, x: (jax.tree.map(lambda v: v + 1, s["e"]), x @ s["w"]),
        {"w": W, "e": {"a": np.zeros((3, 0, 5), np.int32), "b": np.zeros((0, 0), bool)}},
        X,
    ),
    "batch of none": (train, {"w": W}, X[:0]),
    "convolution": (
        lambda s, x: jax.lax.conv_general_dilated(x, s["w"], (1, 1), "SAME"),
        {"w": array(8, 4, 3, 3)},
        array(0, 4, 8, 8),
    ),
}


def assert_same(got: Any, want: Any) -> None:
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert np.asarray(a).shape == np.shape(b)
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS.keys())
def test_around_manual_tactics(mesh: Mesh, program: Any) -> None:
    f, *args = program
    g = ps.auto_partition(mesh, schedule=ROWS, machine="cpu")(f)
    assert_same(g(*args), f(*args))
    for _, value, spec in g.plan(*args).arguments():
        assert 0 not in value.type.shape or spec == P()


def test_searched_reported_and_trained(mesh: Mesh, tmp_path: pathlib.Path) -> None:
    """A search over a state with an empty array, its reports, and steps with donation."""
    f = ps.auto_partition(mesh, machine="tpu_v5e", episodes=5, progress=False, donate_argnums=0)(
        train
    )
    plan = f.plan({"w": W, "e": NONE}, X)
    plan.report(Console(file=io.StringIO()))
    plan.save_report(tmp_path / "report.html")
    assert "e: f32[0,8]" in plan.ir()
    state = f.init(lambda: {"w": jnp.asarray(W), "e": jnp.zeros((0, 8))}, X)
    want: Any = {"w": W, "e": NONE}
    for _ in range(2):
        state, value = f(state, X)
        want, wanted = train(want, X)
    assert_same((state, value), (want, wanted))


def test_nothing_but_empty(mesh: Mesh, tmp_path: pathlib.Path) -> None:
    f = ps.auto_partition(mesh, machine="cpu", episodes=3, progress=False)(lambda s: s * 2)
    assert_same(f(NONE), NONE)
    f.plan(NONE).save_report(tmp_path / "report.html")


@pytest.mark.parametrize(
    "options",
    [
        {"schedule": [ps.ManualPartition({"s/**": 0}, axis="batch")]},
        {"schedule": [ps.ManualPartition({"s/**": ps.FIRST_DIVISIBLE_DIM}, axis="model")]},
        {"schedule": [], "in_shardings": ({"w": P("batch"), "e": P("batch", "model")}, None)},
        {"schedule": [], "out_shardings": ({"w": P("batch"), "e": P(None, "model")}, None)},
        {"schedule": ROWS, "microbatches": 4},
        {"schedule": ROWS, "remat": True},
    ],
    ids=["tactic", "first dim", "in_shardings", "out_shardings", "microbatches", "remat"],
)
def test_options(mesh: Mesh, options: Any) -> None:
    """What is said of an empty array changes nothing about it."""
    args = {"w": W, "e": NONE}, X
    g = ps.auto_partition(mesh, machine="cpu", **options)(train)
    assert_same(g(*args), train(*args))
    assert g.plan(*args).partition_specs[0][0]["e"] == P()


def test_constraints_and_plans_that_are_followed(mesh: Mesh) -> None:
    auto = Mesh(mesh.devices, mesh.axis_names)
    rows = NamedSharding(auto, P("batch"))

    def f(s: Any, x: Any) -> Any:
        return jax.lax.with_sharding_constraint(s["e"] * 2, rows), x @ s["w"]

    args = {"w": W, "e": NONE}, X
    g = ps.auto_partition(auto, schedule=ROWS, machine="cpu")(f)
    assert_same(g(*args), f(*args))
    follow = ps.auto_partition(auto, shardings_like=g.plan(*args), machine="cpu")(f)
    assert_same(follow(args[0], X[:0]), f(args[0], X[:0]))
