"""Pipelines left out, and the step without one, that cannot be faster than the plans made."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh

import partir_search as ps
from partir_search.plan.plan import Plan
from partir_search.planning import contest as contests
from partir_search.planning import pipeline
from partir_search.planning.contest import TRUSTED, Contest, behind
from partir_search.planning.planner import Planner
from partir_search.planning.program_forms import attention_forms, first_stage
from partir_search.planning.trace import read_call, split_call
from partir_search.simulator.simulator import CostModel
from tests.pipelines.programs import STEPS, arguments, residual_mlps
from tests.support import module_of

SIZES = (64, 64), *[(64, 256), (256, 64)] * 4
WEIGHTS = [jax.ShapeDtypeStruct(s, jnp.float32) for s in SIZES]
BATCH = jax.ShapeDtypeStruct((256, 64), jnp.float32)


@dataclasses.dataclass(frozen=True)
class Searched:
    """What a contest reads of a search."""

    known: tuple[tuple[str, ps.Cost], ...]


@dataclasses.dataclass(frozen=True)
class Figures:
    """What a contest reads of a plan."""

    seconds: float
    fits: bool = True
    pipeline: str | None = "a pipeline"
    microbatches: int = 4
    known: tuple[float, ...] = ()

    @property
    def searches(self) -> tuple[Searched, ...]:
        return (Searched(tuple((f"{s}", Figures(s).cost) for s in self.known)),)

    @property
    def cost(self) -> ps.Cost:
        seconds = self.seconds
        return ps.Cost(seconds, seconds, 0.0, 1.0, 1.0, 0.0, {}, {})


def contest(*plans: tuple[Figures, float | None]) -> Contest:
    found = Contest()
    for plan, closed in plans:
        found.add(cast(Plan, plan), closed)
    return found


def test_closed_forms_are_scaled_by_the_plans_made() -> None:
    first = contest((Figures(1.2), 1.0))
    assert first.seconds == 1.2
    assert first.may_win(0.9)
    assert not first.may_win(1.001)
    assert first.may_win(None)  # given numbers
    further = contest((Figures(1.2), 1.0), (Figures(1.4), 1.01), (Figures(1.25), None))
    assert not further.may_win(1.01)
    assert further.may_win(0.99)


def test_known_strategies_of_the_fastest_pipeline() -> None:
    slow = Figures(1.2, known=(1.5, 1.3)), 1.0
    assert contest(slow).known == 1.3
    assert contest(slow, (Figures(1.1, known=(1.4, 1.6)), 1.0)).known == 1.4
    assert contest(slow, (Figures(1.3, known=(1.25,)), 1.0)).known == 1.3
    assert contest(slow, (Figures(1.0, pipeline=None, known=(1.1,)), None)).known == 1.3
    assert math.isinf(contest((Figures(1.2, fits=False, known=(1.0,)), 1.0)).known)
    assert math.isinf(contest((Figures(1.2), 1.0)).known)  # without a search


def test_pipelines_of_slower_known_strategies_are_not_searched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    few = planned(ps.Pipeline("stage"))
    monkeypatch.setattr(contests, "known_seconds", lambda plan: math.inf)
    every = planned(ps.Pipeline("stage"))
    assert len(every.pipelines) == 2
    assert few.pipelines == every.pipelines[:1]


def test_unlikely_figures_leave_nothing_out() -> None:
    assert contest().may_win(1.0)
    assert math.isinf(contest((Figures(1.3, fits=False), 1.0)).seconds)
    assert contest((Figures(1.3, fits=False), 1.0)).may_win(2.0)
    slow = contest((Figures(1.01 * TRUSTED), 1.0))
    assert slow.may_win(1.2)
    assert not slow.may_win(1.02 * TRUSTED)  # a plan takes longer than its closed form
    plain = contest((Figures(1.0, pipeline=None), None))
    assert plain.tried[0].name == "no pipeline"
    assert plain.may_win(0.9)
    assert not plain.may_win(1.1)


@pytest.mark.parametrize("machine", ["tpu_v5e", "h100"])
def test_no_plan_is_below_the_bound(machine: str) -> None:
    """Known strategies, and the answer of a search."""
    shapes = jax.tree.map(lambda s: jnp.ones(s.shape), WEIGHTS)
    module = module_of(
        lambda x, *weights: residual_mlps(weights, x), jnp.ones(BATCH.shape), *shapes
    )
    planner = Planner(module, ps.MeshShape(("a", "b"), (4, 2)), ps.MACHINES[machine])
    least = planner.model.least_seconds(8)
    report = planner.run([ps.AutomaticPartition()], episodes=30).reports[0]
    costs = [report.cost, *(cost for _, cost in report.known)]
    assert 0 < least <= min(cost.compute_seconds for cost in costs)
    assert behind(planner, 0.8 * least)
    assert not behind(planner, math.inf)


def test_bound_is_near_for_products_on_all_devices() -> None:
    """One product of aligned tiles takes the bound and the start of a kernel."""
    x = jnp.ones((8192, 4096), jnp.bfloat16)
    module = module_of(lambda x, w: x @ w, x, jnp.ones((4096, 4096), jnp.bfloat16))
    machine = ps.MACHINES["h100"]
    planner = Planner(module, ps.MeshShape(("a",), (8,)), machine)
    best = planner.run([ps.AutomaticPartition()], episodes=10).cost
    least = planner.model.least_seconds(8) + machine.kernel_seconds
    assert best.seconds == pytest.approx(least, rel=1e-9)


def planned(*tactics: Any, **options: Any) -> ps.Plan:
    return ps.auto_partition(
        AbstractMesh((2, 4), ("stage", "data")),
        machine="tpu_v5e",
        schedule=[*tactics, ps.AutomaticPartition()],
        episodes=10,
        **options,
    )(jax.jit(residual_mlps)).plan(WEIGHTS, BATCH)


def test_the_step_without_a_pipeline_is_left_out_by_its_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[Sequence[str]] = []
    for least in (0.0, 1.0):
        with monkeypatch.context() as patch:
            bound = lambda model, devices, least=least: least  # noqa: E731
            patch.setattr(CostModel, "least_seconds", bound)
            plan = planned(ps.Pipeline("stage", optional=True))
        made.append([tried.name for tried in plan.pipelines])
    assert made[0][-1] == "no pipeline"
    assert "no pipeline" not in made[1]
    assert made[1]


def test_the_step_without_a_pipeline_is_not_searched_far_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Known strategies alone say so: the bound of kernels is left out here."""
    monkeypatch.setattr(CostModel, "least_seconds", lambda model, devices: 0.0)
    every = planned(ps.Pipeline("stage", optional=True))
    without = every.pipelines[-1]
    assert without.name == "no pipeline"
    for share, searched in ((0.01, False), (100.0, True)):
        monkeypatch.setattr(pipeline, "BEHIND", share)
        found = planned(ps.Pipeline("stage", optional=True)).pipelines
        assert [tried.name == "no pipeline" for tried in found].count(True) == searched


def test_pipelines_behind_are_not_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two are by closed form; so small a step takes 17 times as long, which says nothing."""
    monkeypatch.setattr(contests, "known_seconds", lambda plan: math.inf)
    every = planned(ps.Pipeline("stage"))
    monkeypatch.setattr(contests, "TRUSTED", math.inf)
    few = planned(ps.Pipeline("stage"))
    assert len(every.pipelines) == 2
    assert few.pipelines == every.pipelines[:1]


def test_a_list_with_one_search_is_no_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    """The step without a pipeline is planned as it is without a schedule, within memory too."""
    run, searched = Planner.run, list[int]()

    def counted(planner: Planner, *args: Any, **options: Any) -> Any:
        searched[-1] += 1
        return run(planner, *args, **options)

    monkeypatch.setattr(Planner, "run", counted)
    options: dict[str, Any] = {"goals": [ps.Fit(180e3), ps.Fastest()], "on_overflow": "warn"}
    costs = []
    for schedule in (None, [ps.AutomaticPartition()]):
        searched.append(0)
        step = ps.auto_partition(
            AbstractMesh((2, 4), ("stage", "data")),
            machine="tpu_v5e",
            schedule=schedule,
            episodes=10,
            **options,
        )(jax.jit(residual_mlps))
        costs.append(step.plan(WEIGHTS, BATCH).cost)
    assert costs[0] == costs[1]
    assert searched == [1, 1]


def test_the_step_without_a_pipeline_has_the_forms_of_pipelines() -> None:
    """With and without each attention as one op; alone it stays unchanged."""
    step, args = jax.jit(STEPS["attending"]), arguments()
    call = split_call(step, args, {}, (), ())
    traced = read_call(step, call, args, {}, "attending")
    schedule: list[Any] = [ps.Pipeline(), ps.AutomaticPartition()]
    alone, offered = (
        ps.auto_partition(AbstractMesh((2,), ("x",)), machine="h100", schedule=given)(step)._options
        for given in (schedule[1:], schedule)
    )
    forms = [
        attention_forms(first_stage(traced, o.shape), None, o)
        for o in (alone, offered.with_pipelines())
    ]
    assert [[f.rewrites.attention for f in form] for form in forms] == [[False], [False, True]]
