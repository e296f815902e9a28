"""Other batch shapes: planned from the plan that there is, so that state stays where it is."""

from __future__ import annotations

import dataclasses
import io
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from rich.console import Console

import partir_search as ps
from partir_search.simulator.target.machine import find_machine
from tests.calls import calls_of
from tests.support import ROUND

pytestmark = pytest.mark.devices
# Compute is slow and links are fast, so that small shapes are worth tiling.
SLOW = dataclasses.replace(
    ROUND, flops_per_s={"default": 1e7}, hbm_bytes_per_s=1e7, link_bytes_per_s=1e8
)


def step(state: Any, batch: Any) -> Any:
    def loss(params: Any) -> Any:
        h = batch["x"]
        for name in sorted(params):
            h = jnp.tanh(h @ params[name])
        return jnp.mean((h - batch["y"]) ** 2)

    value, grads = jax.value_and_grad(loss)(state["params"])
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, state["momentum"], grads)
    params = jax.tree.map(lambda p, m: p - 0.1 * m, state["params"], momentum)
    return {"params": params, "momentum": momentum}, value


def new_state() -> Any:
    params = {f"w{i}": jax.random.normal(jax.random.key(i), (64, 64)) / 8 for i in range(2)}
    return {"params": params, "momentum": jax.tree.map(jnp.zeros_like, params)}


def batch_of(n: int) -> Any:
    rng = np.random.default_rng(n)
    return {k: rng.normal(size=(n, 64)).astype(np.float32) for k in "xy"}


def counted(mesh: Mesh, fun: Any = step, **options: Any) -> tuple[Any, list[int]]:
    """A partitioned function, and a list that grows by each episode of a search."""
    seen: list[int] = []
    kw: dict[str, Any] = {"machine": SLOW, "episodes": 20, **options}
    return ps.auto_partition(mesh, progress=lambda r: seen.append(1), **kw)(fun), seen


def same_state(one: ps.Plan, other: ps.Plan) -> bool:
    return jax.tree.leaves(one.in_shardings[0][0]) == jax.tree.leaves(other.in_shardings[0][0])


def assert_close(got: Any, want: Any) -> None:
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_alternating_shapes_move_no_state(mesh: Mesh) -> None:
    """Batches of 64, 32 and one that no axis divides: one search, the same buffers throughout."""
    f, seen = counted(mesh, donate_argnums=0)
    state, want = f.init(new_state, batch_of(64)), new_state()
    first = f.plan(new_state(), batch_of(64))
    assert first.basis is None
    assert any(jax.tree.leaves(first.partition_specs[0][0], is_leaf=lambda s: isinstance(s, P)))
    n = len(seen)
    f.plan(new_state(), batch_of(32))
    assert len(seen) == n
    for size in (64, 32, 64, 7, 32, 7, 64):
        before = [x.sharding for x in jax.tree.leaves(state)]
        state, value = f(state, batch_of(size))
        want, wanted = step(want, batch_of(size))
        assert [x.sharding for x in jax.tree.leaves(state)] == before
        np.testing.assert_allclose(value, wanted, rtol=1e-4)
    assert_close(state, want)
    for size in (32, 7):
        plan = f.plan(new_state(), batch_of(size))
        assert same_state(plan, first)
        assert plan.out_shardings[0] == plan.in_shardings[0][0]


def test_planning_is_cheap_and_reported(mesh: Mesh) -> None:
    """No search where all dims divide; the report holds the plan against its base."""
    f, seen = counted(mesh, episodes=200)
    first = calls_of(lambda: f.plan(new_state(), batch_of(64)))
    n, plans = len(seen), list[ps.Plan]()
    again = calls_of(lambda: plans.append(f.plan(new_state(), batch_of(32))))
    assert again < 0.3 * first  # a tenth of the seconds, in programs that take seconds
    (plan,) = plans
    assert len(seen) == n
    assert plan.basis is not None
    assert plan.basis.changed == (
        ("batch/x", (64, 64), (32, 64)),
        ("batch/y", (64, 64), (32, 64)),
    )
    said = plan.basis.describe(plan.cost.seconds)
    pace = plan.cost.seconds / plan.basis.seconds * 2
    assert f"made from the plan of batch/x [64, 64]: {pace:.2f} of its seconds per example" in said
    out = io.StringIO()
    plan.report(Console(file=out, width=200))
    assert "of its seconds per example; step.free_plan(...)" in " ".join(out.getvalue().split())
    free = f.free_plan(new_state(), batch_of(32))
    assert free.basis is None
    assert len(seen) > n
    assert f.plan(new_state(), batch_of(32)) is plan


def test_a_dim_that_no_longer_divides(mesh: Mesh) -> None:
    """A longer form of it, or a part of the axis, is tiled, as far as that goes."""
    rows = [ps.ManualPartition({"batch": 0}, axis="model"), ps.AutomaticPartition(("batch",))]
    for pad, size in ((True, 63), (False, 62), (False, 61)):
        f, _ = counted(mesh, pad=pad)
        first = f.plan(new_state(), batch_of(64))
        state, value = f(new_state(), batch_of(size))
        want, wanted = step(new_state(), batch_of(size))
        assert_close((state, value), (want, wanted))
        plan = f.plan(new_state(), batch_of(size))
        assert same_state(first, plan)
        assert plan.basis is not None
        assert plan.basis.pace(plan.cost.seconds) < 5  # 8 devices
    f, _ = counted(mesh, schedule=rows)
    f.plan(new_state(), batch_of(64))
    with pytest.raises(ValueError, match=r"batch/x has shape .63, 64.: dim 0 of size 63 does not"):
        f.plan(new_state(), batch_of(63))  # the user's own tactic means what it says


def test_state_comes_and_goes_where_the_base_has_it(mesh: Mesh) -> None:
    """Another batch brings other layouts of weights: they are redistributed inside of the step."""
    tactics = [
        ps.ManualPartition({"batch": 0}, axis="batch+model"),
        ps.ManualPartition({"state/**": 1}, axis="model"),
        ps.AutomaticPartition(("batch",), episodes=3),
    ]
    saved = counted(mesh, schedule=tactics)[0].plan(new_state(), batch_of(64))
    f, _ = counted(mesh, schedule=saved)
    first = f.plan(new_state(), batch_of(64))
    for size in (4, 6, 9, 160):
        got = f(new_state(), batch_of(size))
        assert_close(got, step(new_state(), batch_of(size)))
        assert same_state(f.plan(new_state(), batch_of(size)), first)


@pytest.mark.parametrize(
    "options",
    [
        {"remat": True},
        {"microbatches": 2},
        {"microbatches": (1, 4)},
        {"rings": True, "episodes": 4},
        {"in_shardings": ({"params": P("model"), "momentum": P("model")}, None)},
        {"groups": [ps.group("state/params/w0", "state/params/w1")]},
    ],
    ids=["remat", "microbatches", "several", "rings", "in_shardings", "groups"],
)
def test_options(mesh: Mesh, options: Any) -> None:
    f, _ = counted(mesh, **options)
    first = f.plan(new_state(), batch_of(64))
    for size in (32, 6):
        assert_close(f(new_state(), batch_of(size)), step(new_state(), batch_of(size)))
        plan = f.plan(new_state(), batch_of(size))
        assert plan.basis is not None
        assert same_state(plan, first)
        assert plan.microbatches == first.microbatches
        assert bool(plan.remat) == bool(first.remat)
        assert size == 6 or not plan.basis.left_out  # 32 divides as 64 does


def test_what_does_not_fit_is_searched_with_its_state_fixed(mesh: Mesh) -> None:
    f, seen = counted(mesh, goals=[ps.Fit(3e5), ps.Fastest()], on_overflow="warn")
    first = f.plan(new_state(), batch_of(64))
    assert first.fits
    n = len(seen)
    plan = f.plan(new_state(), batch_of(4096))
    assert len(seen) > n
    assert same_state(plan, first)
    assert plan.basis is not None
    assert plan.basis.episodes == 20


def test_other_functions_of_the_call_are_planned_freely(mesh: Mesh) -> None:
    """Another tree, other static arguments, another state: nothing that there is serves."""

    def f(state: Any, batch: Any, scale: float = 1.0) -> Any:
        new, value = step(state, batch)
        return new, value * scale

    g, _ = counted(mesh, f, static_argnames="scale", episodes=4)
    g.plan(new_state(), batch_of(64))
    assert g.plan(new_state(), batch_of(32)).basis is not None
    assert g.plan(new_state(), batch_of(32), scale=2.0).basis is None
    three = {k: {**v, "w2": jnp.ones((64, 64))} for k, v in new_state().items()}
    assert g.plan(three, batch_of(64)).basis is None
    wide = jax.tree.map(lambda x: jnp.tile(x, (1, 2))[:, :128], {"w0": jnp.ones((64, 64))})
    other = {"params": wide, "momentum": wide}
    assert g.plan(other, {"x": batch_of(8)["x"], "y": np.ones((8, 128), np.float32)}).basis is None
    h, _ = counted(mesh, lambda x: jnp.tanh(x) @ x.T, episodes=4)
    h.plan(batch_of(64)["x"])
    assert h.plan(batch_of(32)["x"]).basis is None


def test_a_new_optimizer_object_serves(mesh: Mesh) -> None:
    """A state whose static fields are new functions of the same step, as in `TrainState.tx`."""

    @partial(jax.tree_util.register_dataclass, data_fields=["arrays"], meta_fields=["update"])
    @dataclasses.dataclass(frozen=True)
    class Train:
        arrays: Any
        update: Any

    def train(state: Train, batch: Any) -> Any:
        new, value = state.update(state.arrays, batch)
        return dataclasses.replace(state, arrays=new), value

    def fresh(of: Any = lambda x: 2.0 * x) -> Train:
        return Train(new_state(), lambda s, b: step(s, {**b, "x": of(b["x"])}))

    f, seen = counted(mesh, train)
    first, n = f.plan(fresh(), batch_of(64)), len(seen)
    assert f.plan(fresh(), batch_of(64)).actions == first.actions
    smaller = f.plan(fresh(), batch_of(32))
    changed = f.plan(fresh(jnp.sin), batch_of(64))
    assert len(seen) == n
    assert smaller.basis is not None
    assert smaller.basis.changed
    assert changed.basis is not None
    assert "made from the plan of the same shapes" in changed.basis.describe(1.0)
    got, value = f(fresh(jnp.sin), batch_of(32))
    want, wanted = fresh(jnp.sin).update(new_state(), batch_of(32))
    assert_close(got.arrays, want)
    np.testing.assert_allclose(value, wanted, rtol=1e-4)


def test_saved_cached_and_followed(mesh: Mesh, tmp_path: Any) -> None:
    """A derived plan is a plan: it is saved, replayed, followed; a cache gives the same one."""
    f, _ = counted(mesh, cache=tmp_path / "cache")
    first = f.plan(new_state(), batch_of(64))
    plan = f.plan(new_state(), batch_of(6))
    plan.save(tmp_path / "plan.json")
    again, _ = counted(mesh, schedule=ps.load_plan(tmp_path / "plan.json"))
    assert again.plan(new_state(), batch_of(6)).partition_specs == plan.partition_specs
    assert again.plan(new_state(), batch_of(6)).cost.seconds == pytest.approx(plan.cost.seconds)
    later, seen = counted(mesh, cache=tmp_path / "cache")
    assert same_state(later.plan(new_state(), batch_of(64)), first)
    assert not seen
    assert later.plan(new_state(), batch_of(6)).actions == plan.actions
    follow = ps.auto_partition(mesh, shardings_like=first, machine=SLOW)(step)
    assert same_state(follow.plan(new_state(), batch_of(32)), first)


def test_longer_sequences_and_large_machines(mesh: Mesh) -> None:
    """More work than the base plan has may pay to tile: a short search looks for that."""

    def f(state: Any, tokens: Any) -> Any:
        def loss(table: Any) -> Any:
            h = jnp.tanh(table[tokens] @ state["w"])
            return jnp.mean(h**2)

        value, grad = jax.value_and_grad(loss)(state["table"])
        return {"table": state["table"] - 0.1 * grad, "w": state["w"]}, value

    state = {"table": jnp.ones((32, 16)), "w": jnp.ones((16, 16))}
    g, seen = counted(mesh, f, machine=find_machine("tpu_v5e"), episodes=40)
    short, long = (np.ones((8, n), np.int32) for n in (8, 64))
    assert_close(g(state, short), f(state, short))
    n = len(seen)
    assert_close(g(state, long), f(state, long))
    assert len(seen) > n
    plan = g.plan(state, long)
    assert plan.basis is not None
    assert "of its seconds per element, 2 episodes" in plan.basis.describe(plan.cost.seconds)
    assert same_state(plan, g.plan(state, short))
