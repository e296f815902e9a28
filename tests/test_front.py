"""`plan.front()`: no point is dominated, each is a plan that is saved, replayed and executed."""

from __future__ import annotations

import dataclasses
import gc
import io
import itertools
import json
import pathlib
import random
import weakref
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh
from rich.console import Console

import partir_search as ps
from models.catalog import MODELS
from partir_search.mcts.front import nondominated, spread
from partir_search.plan.front import Front
from partir_search.plan.plan import Plan
from partir_search.planning.front import form
from partir_search.planning.front.memory_steps import memory_moves

LAYERS, WIDTH = 4, 64


def step(params: dict[str, Any], x: jax.Array) -> tuple[dict[str, Any], jax.Array]:
    """A train step of a deep network whose activations outweigh its weights."""

    def loss(params: dict[str, Any]) -> jax.Array:
        h = x
        for i in range(LAYERS):
            w = params[f"layer_{i}"]
            h = h + jnp.tanh(jnp.tanh(h @ w["up"]) @ w["down"]) * jnp.sin(h)
        return jnp.mean(h**2)

    value, grads = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value


def arguments(batch: int = 512) -> tuple[dict[str, Any], np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = {"up": (WIDTH, 2 * WIDTH), "down": (2 * WIDTH, WIDTH)}
    params = {
        f"layer_{i}": {n: 0.1 * rng.normal(size=s).astype(np.float32) for n, s in shapes.items()}
        for i in range(LAYERS)
    }
    return params, rng.normal(size=(batch, WIDTH)).astype(np.float32)


MESH = AbstractMesh((4, 2), ("data", "model"))


def partitioned(mesh: Any = MESH, **options: Any) -> Any:
    return ps.auto_partition(mesh, machine="tpu_v5e", progress=False, **options)(step)


def plan_of(**options: Any) -> Plan:
    found: Plan = partitioned(**{"episodes": 40, **options}).plan(*arguments())
    return found


def figures(point: Any) -> tuple[float, float]:
    return point.seconds, point.peak_bytes


def check(front: Front[Plan], plan: Plan) -> None:
    """Fastest first, and each point smaller than all before; figures are those of its plan."""
    for one, other in itertools.pairwise(front):
        assert one.seconds < other.seconds
        assert one.peak_bytes > other.peak_bytes
    for point in front:
        made = point.plan()
        assert (made.cost.seconds, made.cost.peak_bytes) == figures(point)
        assert made.actions == point.actions
        assert made.remat == point.remat
        assert point.fits == made.fits == (point.peak_bytes <= plan.memory_limit)
        assert made.front().chosen is not None
        assert figures(made.front().chosen) == figures(point)
    assert front[0].seconds <= plan.cost.seconds
    if front.chosen is not None:
        assert front.chosen.plan() is plan
    else:
        assert any(all(np.less_equal(figures(p), figures(plan.cost))) for p in front)


@pytest.fixture(autouse=True, scope="module")
def quick() -> Iterator[pytest.MonkeyPatch]:
    """Fronts without exact steps, which take seconds; one test undoes this."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(form, "memory_moves", lambda game, starts: [])
        yield patch


@pytest.fixture(scope="module")
def plan() -> Plan:
    return plan_of()


@pytest.fixture(scope="module")
def front(plan: Plan) -> Front[Plan]:
    return plan.front()


def test_nondominated_and_spread() -> None:
    """Against the definition, on random points; ends and kept points stay."""
    rng = random.Random(0)
    points = [(float(rng.randrange(1, 40)), float(rng.randrange(1, 40))) for _ in range(200)]
    found = nondominated(points, lambda p: p)
    for p in points:
        beaten = any(q != p and q[0] <= p[0] and q[1] <= p[1] for q in points)
        assert (p in found) != beaten
    assert found == sorted(set(found))
    some = spread(found, lambda p: p, 4, keep=(found[1],))
    assert len(some) == 4
    assert {found[0], found[1], found[-1]} <= set(some)
    assert spread(found, lambda p: p, 99) == found
    assert spread([(1.0, 9.0), (1.5, 8.99), (2.0, 1.0)], lambda p: p, 3, 0.1)[1:] == [(2.0, 1.0)]
    assert nondominated([], lambda p: p) == spread([], lambda p: p, 3) == []


def test_points_are_plans(plan: Plan, front: Front[Plan]) -> None:
    check(front, plan)
    assert 5 <= len(front) <= 12
    assert {bool(p.remat) for p in front} == {False, True}  # recomputation is worthwhile
    assert front.smallest.peak_bytes < 0.5 * front.fastest.peak_bytes
    assert plan.front() is front
    assert front.within(front[2].peak_bytes) is front[2]
    with pytest.raises(ValueError, match="the smallest needs"):
        front.within(front.smallest.peak_bytes - 1.0)


def test_no_known_strategy_beats_a_point(plan: Plan, front: Front[Plan]) -> None:
    """Whole costs; layers are alike, so that folded costs select the right ones."""
    for known in ps.known_strategies(step, MESH, *arguments(), machine="tpu_v5e").values():
        for point in front:
            cost = known.cost.seconds * 1.001, known.cost.peak_bytes * 1.001
            assert not (cost[0] <= point.seconds and cost[1] <= point.peak_bytes), point


def test_exact_steps_extend_the_front(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program without segments: prices of bytes find points between known strategies."""
    monkeypatch.setattr(form, "memory_moves", memory_moves)
    entry = MODELS["deep-linear-tiny"]
    mesh = AbstractMesh((4,), ("data",))
    partitioned = ps.auto_partition(mesh, machine="tpu_v5e", episodes=40)(entry.step)
    plan = partitioned.plan(*entry.abstract_args(64))
    front = plan.front()
    check(front, plan)
    assert any(p.strategy.startswith("exact steps from") for p in front)
    assert not any(p.remat for p in front)


def test_printed_and_saved(plan: Plan, front: Front[Plan], tmp_path: pathlib.Path) -> None:
    """In the report, the page and the file; a file without a front has none."""
    text = str(front)
    assert "points differ in decisions along data, model and segments computed again" in text
    for point in front:
        assert f"{point.seconds * 1e3:.3f}" in text
    out = io.StringIO()
    plan.report(Console(file=out, width=200))
    assert "seconds against memory" in out.getvalue()
    plan.save_report(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "Seconds against memory" in page
    assert page.count("<circle ") == len(front)
    plan.save(tmp_path / "plan.json")
    saved = json.loads((tmp_path / "plan.json").read_text())["front"]
    assert [(p["seconds"], p["peak_bytes"]) for p in saved] == list(map(figures, front))
    other = plan_of(schedule=[])
    assert "front" not in other.to_json()
    other.save_report(tmp_path / "other.html")
    assert "<circle " not in (tmp_path / "other.html").read_text()


def test_loaded_points_and_plans(plan: Plan, front: Front[Plan], tmp_path: pathlib.Path) -> None:
    """A saved point is replayed at its cost; a loaded plan has a front of its own, as wide."""
    point = next(p for p in front if p.remat)
    point.plan().save(tmp_path / "point.json")
    again = plan_of(schedule=ps.load_plan(tmp_path / "point.json"))
    assert (again.cost.seconds, again.cost.peak_bytes) == figures(point)
    found = again.front()
    check(found, again)
    assert found.smallest.peak_bytes <= 1.1 * front.smallest.peak_bytes
    assert found.fastest.seconds <= 1.05 * front.fastest.seconds


def test_limit_marks_points_that_do_not_fit(front: Front[Plan]) -> None:
    """A plan within a limit: faster points are shown, and marked."""
    limit = 0.5 * (front[0].peak_bytes + front.smallest.peak_bytes)
    plan = plan_of(goals=[ps.Fit(limit), ps.Fastest()])
    found = plan.front()
    check(found, plan)
    assert plan.fits
    assert {p.fits for p in found} == {False, True}
    assert found.limit == limit


def test_schedules_that_decide_all() -> None:
    """Tilings stay; points differ in the segments computed again, if options allow any."""
    schedule = [ps.ManualPartition({"x": 0}, axis="data")]
    plan = plan_of(schedule=schedule)
    found = plan.front()
    check(found, plan)
    assert found.chosen is not None
    assert len(found) > 1
    assert len({p.plan().in_shardings[0][1].spec for p in found}) == 1
    assert "all tilings are given" in found.note
    alone = plan_of(schedule=schedule, remat=False).front()
    assert [p.chosen for p in alone] == [True]
    assert "no choice is left" in alone.note
    everything = plan_of(schedule=schedule, remat=True)
    assert [p.remat for p in everything.front()] == [everything.remat]


def test_earlier_decisions_stay() -> None:
    """Fixed shardings, and tactics before the automatic one."""
    data = jax.P("data")
    plan = plan_of(in_shardings=(None, data), schedule=[ps.AutomaticPartition(axes=("model",))])
    assert plan.space is not None
    assert plan.space.axes == ("model",)
    for point in plan.front():
        made = point.plan()
        axes = {a for _, _, spec in made.arguments() for dim in spec for a in np.atleast_1d(dim)}
        assert made.in_shardings[0][1].spec[0] in ("data", ("data", "model"))
        assert made.actions[: len(plan.space.decided)] == plan.space.decided
        assert axes <= {"data", "model", None}
    last = plan_of(
        schedule=[ps.AutomaticPartition(axes=("model",)), ps.ManualPartition({"x": 0}, axis="data")]
    )
    assert last.space is None  # the later tactic depends on the search


def test_smallest_point_runs() -> None:
    """On 8 devices, against the plain step."""
    mesh = jax.make_mesh((4, 2), ("data", "model"))
    args = arguments()
    plan = partitioned(mesh, episodes=20).plan(*args)
    point = plan.front().smallest
    assert not point.chosen
    assert point.remat
    found = partitioned(mesh, schedule=point.plan())(*args)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(step(*args)), strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-4, atol=1e-6)


def test_plans_hold_no_arrays(young_heap: None) -> None:
    """The front is found from the program: a plan keeps no argument alive."""
    x = jnp.ones((64, WIDTH))
    dead = weakref.ref(x)
    plan = partitioned(schedule=[]).plan(arguments()[0], x)
    del x
    gc.collect()
    assert dead() is None
    assert dataclasses.is_dataclass(plan.front()[0])
