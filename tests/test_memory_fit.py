"""Searches for a plan that fits: which programs are searched with segments computed again."""

from __future__ import annotations

import dataclasses
import random
import types
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh

import partir_search as ps
from models.catalog import MODELS
from partir_search.ir.core import Module
from partir_search.ir.mesh import MeshShape
from partir_search.mcts.game import rewind
from partir_search.mcts.goals import is_monotone, scorer
from partir_search.passes.remat import find_segments, rematerialize
from partir_search.plan.evaluation import Evaluated
from partir_search.plan.planned import Planned
from partir_search.plan.report.summary import summary
from partir_search.planning.form_tiles import with_tiles_of
from partir_search.planning.known_strategies import known_actions
from partir_search.planning.memory_fit import (
    FormPlanner,
    _worth,
    fit_by_remat,
    kinds_of,
)
from partir_search.planning.planner import Planner
from partir_search.planning.segment_peaks import predict_segments
from partir_search.planning.stage_planner import StagePlanner
from partir_search.planning.trace import split_call, trace_call
from partir_search.propagation.actions import Action, Replicate, Tile
from partir_search.propagation.state import State
from partir_search.simulator.cost import Cost
from partir_search.simulator.target.machine import find_machine
from tests.support import module_of


def deep(x: Any, *arrays: Any) -> Any:
    """Four new weights after one step of a deep network, and the sum of three tables."""
    weights, tables = arrays[:4], arrays[4:]

    def loss(weights: Any) -> Any:
        y = x
        for w in weights:
            y = y + jnp.tanh(jnp.sin(y @ w) @ w.T)
        return (y * y).mean()

    return [w - g for w, g in zip(weights, jax.grad(loss)(weights), strict=True)] + [sum(tables)]


MESH, CPU = MeshShape(("data",), (2,)), find_machine("cpu")


def replay(rewritten: Module, actions: Sequence[Action]) -> Planned:
    return applied(rewritten, actions)[0]


def applied(rewritten: Module, actions: Sequence[Action]) -> tuple[Planned, bool]:
    planned, dropped = Planner(rewritten, MESH, CPU).replay_compatible(actions)
    return planned, not dropped


def seconds(cost: Cost) -> float:
    return cost.seconds


def slower(planned: Planned) -> Planned:
    """A plan that takes a thousand seconds."""
    cost = dataclasses.replace(planned.cost, seconds=1e3)
    evaluation = Evaluated(planned.graph, planned.sketch, planned.model, cost)
    return dataclasses.replace(planned, evaluation=evaluation)


def deep_module(rows: int) -> Module:
    weights = [jax.ShapeDtypeStruct((16, 32), jnp.float32)] * 4
    tables = [jax.ShapeDtypeStruct((1024, 256 if rows == 8 else 1), jnp.float32)] * 3
    return module_of(deep, jax.ShapeDtypeStruct((rows, 16), jnp.float32), *weights, *tables)


@pytest.mark.parametrize("rows", [8, 4096])
def test_searched_again_only_where_segments_free_memory(rows: int) -> None:
    """With 8 rows the peak is the sum of tables, which no segment holds; with 4096, activations."""
    module = deep_module(rows)
    planned = replay(module, [])
    searched: list[Module] = []

    def search(rewritten: Module, hints: Sequence[Action], goals: Any) -> Planned:
        searched.append(rewritten)
        return replay(rewritten, hints)

    segments = find_segments(module)
    recomputed = rematerialize(module, segments)
    limit = 0.5 * planned.cost.peak_bytes
    forms = FormPlanner(search, applied, seconds)
    found, chosen = fit_by_remat(module, recomputed, segments, planned, limit, forms)
    if rows == 8:
        assert not searched
        assert found is planned
        assert chosen == ()
    else:
        assert searched == [recomputed]
        assert found.cost.peak_bytes < planned.cost.peak_bytes


def test_fewer_segments_by_decisions_that_hold() -> None:
    """Decisions on recomputed values hold with all segments only; a known strategy with any."""
    module = deep_module(4096)
    segments = find_segments(module)
    recomputed = rematerialize(module, segments)
    planned, known = replay(module, []), replay(recomputed, [])
    again = next(n for n in recomputed.value_names() if n.endswith("_again"))
    both = [Replicate(again.removesuffix("_again"), "data"), Tile(again, 0, "data")]
    full = slower(replay(recomputed, both))
    assert len(full.actions) == 2
    limit = 0.5 * (planned.cost.peak_bytes + known.cost.peak_bytes)

    def fitted(*more: Any) -> tuple[Planned, Sequence[Any]]:
        forms = FormPlanner(lambda *_: full, applied, seconds, *more)
        return fit_by_remat(module, recomputed, segments, planned, limit, forms)

    alone, all_segments = fitted()
    assert alone.cost == full.cost
    assert all_segments == tuple(segments)

    def correct(
        form: Module, actions: Sequence[Action], other: Planned, played: Planned
    ) -> Planned | None:
        return with_tiles_of(Planner(form, MESH, CPU), other, played, actions, (), lambda cost: 0.0)

    for least, *more in ((1, lambda rewritten: known), (0, None, correct)):
        found, some = fitted(*more)  # corrected, the plan fits without any segment
        assert least <= len(some) < len(segments)
        assert found.cost.peak_bytes <= limit
        assert found.cost.seconds < full.cost.seconds


def test_decisions_that_do_not_hold_say_nothing_of_the_worth_of_memory() -> None:
    """Memory is priced by a known strategy if recomputation breaks the plan's decisions."""
    module = deep_module(4096)
    segments = find_segments(module)
    recomputed = rematerialize(module, segments)
    known, plain = replay(recomputed, []), replay(module, [])
    limit = 0.8 * plain.cost.peak_bytes
    asked: list[Sequence[Any]] = []

    def search(rewritten: Module, hints: Sequence[Action], goals: Sequence[Any]) -> Planned:
        asked.append(goals)
        return known

    slow = slower(known)  # replayed, the decisions that hold are slower than any strategy

    def lossy(rewritten: Module, actions: Sequence[Action]) -> tuple[Planned, bool]:
        return (slow, False) if rewritten is recomputed else applied(rewritten, actions)

    lost = dataclasses.replace(plain, actions=(Replicate("unknown", "data"),))
    for planned, replayed in ((plain, applied), (lost, lossy)):
        forms = FormPlanner(search, replayed, seconds, lambda rewritten: known)
        fit_by_remat(module, recomputed, segments, planned, limit, forms)
    assert asked[0] == asked[1]
    assert asked[0]


def test_predicted_peaks_and_seconds() -> None:
    """Predictions for some segments agree with plans of programs rewritten for them."""
    module = deep_module(4096)
    segments = find_segments(module)
    assert len(segments) >= 3
    full = replay(rematerialize(module, segments), [])
    plain, kinds = replay(module, []), kinds_of(module, segments)
    peaks = predict_segments(module, segments, kinds, plain, full)
    assert peaks is not None
    parts = [forms[0] for forms in peaks.forms.values()]
    assert any(len(part) > 2 for part in parts)  # results are stored
    for some in ((), segments[:1], segments[:2], segments[-1:], segments):
        cost = replay(rematerialize(module, some) if some else module, []).cost
        # What lies between two segments is freed with either: with both, sums are exact.
        near = 0.08 if some == segments[:1] else 1e-3
        assert peaks.peak(some) == pytest.approx(cost.peak_bytes, rel=near)
        assert plain.cost.seconds + peaks.spent(some) == pytest.approx(cost.seconds, rel=0.05)
    for some in (parts[1:2], parts[2:], parts):
        cost = replay(rematerialize(module, some), []).cost
        assert peaks.peak(some) == pytest.approx(cost.peak_bytes, rel=0.08)
    assert peaks.peak(segments[:2]) < peaks.peak(segments[:1]) < peaks.peak(())


def test_nothing_is_searched_that_cannot_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no tiling fits, the program is searched with segments recomputed, and not before."""
    module = deep_module(4096)
    seen: list[bool] = []
    run = Planner.run

    def spied(self: Planner, *args: Any, **kwargs: Any) -> Planned:
        seen.append(any(op.prim == "checkpoint" for op in self.module.ops))
        return run(self, *args, **kwargs)

    monkeypatch.setattr(Planner, "run", spied)
    least = Planner(module, MESH, CPU).model.least_peak(2)
    args = [jax.ShapeDtypeStruct(v.type.shape, v.type.dtype) for v in module.body.args]

    def plan(limit: float) -> ps.Plan:
        seen.clear()
        mesh, machine = AbstractMesh((2,), ("data",)), dataclasses.replace(CPU, hbm_bytes=limit)
        wrapped = ps.auto_partition(
            mesh, machine=machine, episodes=20, on_overflow="warn", progress=False
        )
        return wrapped(deep).plan(*args)

    assert plan(0.9 * least).remat
    assert seen == [True]
    assert not plan(4.0 * least).remat
    assert seen == [False]


@pytest.mark.parametrize("name", ["transformer-tiny", "moe-tiny", "unet-tiny", "gpt-scan-tiny"])
def test_no_plan_peaks_below_the_least(name: str) -> None:
    """`CostModel.least_peak` bounds the peaks of known strategies and of random tilings."""
    entry = MODELS[name]
    step, args = jax.jit(entry.step), entry.abstract_args(16)
    module = trace_call(step, split_call(step, args, {}, (), ()), args, {}, "step").module
    mesh, machine = MeshShape(("data", "model"), (4, 2)), ps.MACHINES["tpu_v5e"]
    planner = Planner(module, mesh, machine)
    least = planner.model.least_peak(8)
    peaks = [planner.replay(a).cost.peak_bytes for _, a in known_actions(planner)]
    models, game = planner.game(planner.names)
    rng = random.Random(0)
    for _ in range(5):
        moves = [move for _ in range(12) if (move := game.draw(rng)) and game.step(move)]
        rewind(game, len(moves))
        state = State(planner.graph, planner.mesh)
        actions = models.lifter.lift(game, moves, state)
        peaks.append(planner.replay(actions).cost.peak_bytes)
    assert 0 < least <= min(peaks)


def test_spare_memory_is_worth_what_segments_cost() -> None:
    """All segments cost 2 s and free 50 bytes, so that a byte is worth 40 ms."""

    def cost(seconds: float, peak_bytes: float) -> Any:
        return types.SimpleNamespace(seconds=seconds, peak_bytes=peak_bytes)

    (spare,) = _worth(cost(8.0, 150.0), cost(10.0, 100.0), 120.0, lambda c: c.seconds)
    score = scorer((ps.Fastest(), spare))
    assert score(cost(10.0, 120.0)).objective == score(cost(10.0, 130.0)).objective == 10.0
    assert score(cost(10.0, 100.0)).objective == pytest.approx(10.0 - 20 * 0.04)
    assert score(cost(10.0, 50.0)).objective == pytest.approx(8.0)  # none is left to spare
    assert score(cost(10.0, 100.0)) < score(cost(9.5, 118.0))
    assert is_monotone(spare)
    assert (
        _worth(cost(8.0, 150.0), cost(10.0, 160.0), 120.0, lambda c: c.seconds) == []
    )  # they free nothing


def test_goals_of_one_search_are_not_kept() -> None:
    """Figures beside a plan, by the same planner, are by the user's goals."""
    mesh = MeshShape(("data",), (2,))
    here = AbstractMesh(mesh.sizes, mesh.names)
    options = ps.auto_partition(here, machine="tpu_v5e", episodes=5)(jnp.sin)._options
    planner = Planner(module_of(jnp.sin, jnp.ones((8, 8))), mesh, find_machine("tpu_v5e"))
    stages = StagePlanner(options, lambda module: [], lambda module: planner)
    own = planner.goals
    stages._run(planner, goals=[ps.Fit(1e9)])
    assert planner.goals == own


def test_residuals_slower_to_move_than_to_compute_run_again() -> None:
    """Without a limit; the bound is that of the plans that store all residuals."""
    entry = MODELS["gpt-scan-tiny"].resized(remat="", layers=4, seq=256, d_model=128, heads=4)
    mesh, goals = AbstractMesh((2,), ("data",)), [ps.Fastest()]

    def step(remat: Any) -> Any:
        options: dict[str, Any] = {"machine": "tpu_v5e", "remat": remat, "goals": goals}
        return ps.auto_partition(mesh, episodes=300, progress=False, **options)(entry.step)

    auto, args = step("auto"), entry.abstract_args(16)
    stored, found = step(False).plan(*args), auto.plan(*args)
    assert not stored.remat
    assert found.stored_results
    assert not found.short_of_memory
    assert found.cost.seconds < stored.cost.seconds
    assert found.cost.peak_bytes < stored.cost.peak_bytes
    assert found.bound is not None
    assert stored.bound is not None
    assert found.bound.seconds == stored.bound.seconds
    assert found.bound.found == found.cost.seconds
    assert any("in fewer seconds than stored" in text for _, text in summary(found))
    larger = auto.plan(*entry.abstract_args(32))  # adapted, not planned anew
    assert larger.remat == found.remat
