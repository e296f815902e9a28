"""`plan.bound`: below every plan, met where elimination is exact, printed, saved and loaded."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import jax
import pytest
from jax.sharding import AbstractMesh

import partir_search as ps
from experiments.random_states import game_of_model
from models.catalog import MODELS
from partir_search.ir.mesh import MeshShape
from partir_search.lowering.localize import localize
from partir_search.mcts.game import play, rewind
from partir_search.plan.lower_bound import found_in_full
from partir_search.plan.plan import Plan
from partir_search.plan.plan_bound import PlanBound
from partir_search.plan.report import report_page
from partir_search.planning.exact_answer import exact_moves
from partir_search.simulator.target.machine import MACHINES
from partir_search.strategies.catalogue import named_strategies
from tests.support import floats_of

GRID = MeshShape(("data", "model"), (4, 2))
ZOO = {
    "transformer-tiny": 512,
    "dlrm-tiny": 8192,
    "graph-net-tiny": 64,
    "gpt-scan-tiny": 512,
    "moe-tiny": 1024,
    "t5-tiny": 512,
    "mixer-tiny": 512,
}
LONG = {"graph-net-tiny", "gpt-scan-tiny", "t5-tiny", "moe-tiny", "mixer-tiny"}


def pair(x: jax.Array, w: jax.Array, v: jax.Array) -> jax.Array:
    return jax.numpy.tanh(x @ w) @ v


ARGS = floats_of((4096, 512), (512, 2048), (2048, 512))


def plan_of(sizes: tuple[int, ...] = (4,), **options: Any) -> Plan:
    mesh = AbstractMesh(sizes, ("data", "model")[: len(sizes)])
    step = ps.auto_partition(mesh, machine="tpu_v5e", episodes=300, **options)(pair)
    return step.plan(*ARGS)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] * (name in LONG)) for name in ZOO]
)
def test_no_plan_of_the_zoo_is_below_its_bound(name: str) -> None:
    """Neither the known strategies, nor what exact steps find; and the gap is small."""
    game = game_of_model(name, ZOO[name], GRID, MACHINES["tpu_v5e"])
    known = named_strategies(game.mesh, game.axes, game.targets)
    found = exact_moves(game, known, 4)
    assert found.bound is not None
    seconds = []
    for path in [*(moves for _, moves in known), *((move,) for move in found.moves)]:
        played = len(list(play(game, path)))
        seconds.append(game.model.evaluate(localize(game.state.partition())).seconds)
        rewind(game, played)
    full = found_in_full(found.lower_bound)  # turns left to the first access
    assert full is not None
    assert found.bound <= full.seconds <= min(seconds) * (1.0 + 1e-6)
    assert min(seconds) <= 1.3 * full.seconds


def test_one_axis_is_planned_optimally() -> None:
    plan = plan_of()
    assert plan.bound is not None
    assert plan.bound.optimal
    assert plan.bound.seconds == pytest.approx(plan.searches[0].cost.seconds)
    assert "optimal" in str(plan.bound)


def test_a_gap_is_in_reports_and_files(tmp_path: pathlib.Path) -> None:
    """Loaded, the bound is that of the saved plan; files without a bound load as before."""
    plan = plan_of((4, 2))
    bound = PlanBound(0.97 * plan.cost.seconds, plan.cost.seconds)
    plan.__dict__["bound"] = bound
    assert str(bound).startswith("within 3.1 % of the best plan of this space (all tilings")
    text = ps.report.figures_table(plan)
    assert f"{bound.seconds * 1e3:.3f} ms: within 3.1 %" in str(list(text.columns[1].cells))
    assert str(text.caption) == str(bound)
    assert "within 3.1 %" in report_page(plan, plan.timeline)
    plan.save(tmp_path / "plan.json")
    loaded = ps.load_plan(tmp_path / "plan.json")
    assert loaded.bound == bound
    assert plan_of((4, 2), schedule=loaded).bound == bound
    data = json.loads((tmp_path / "plan.json").read_text())
    del data["bound"]
    (tmp_path / "old.json").write_text(json.dumps(data))
    assert ps.load_plan(tmp_path / "old.json").bound is None
    (tmp_path / "bad.json").write_text(json.dumps({**data, "bound": {"seconds": "few"}}))
    with pytest.raises(ValueError, match="seconds"):
        ps.load_plan(tmp_path / "bad.json")


def test_searches_without_a_bound() -> None:
    """Two searches, goals without seconds, and rings."""
    apart = [ps.AutomaticPartition(axes=("data",)), ps.AutomaticPartition(axes=("model",))]
    assert plan_of((4, 2), schedule=apart).bound is None
    assert plan_of((4, 2), schedule=[]).bound is None


def test_recomputation_is_bounded_by_the_plans_without(tmp_path: pathlib.Path) -> None:
    """The first access computes the bound, also of a loaded plan; no plan without is below."""
    entry = MODELS["transformer-tiny"]
    mesh, args = AbstractMesh((4,), ("data",)), entry.abstract_args(512)

    def planned(**options: Any) -> Plan:
        decorate = ps.auto_partition(
            mesh, machine="tpu_v5e", episodes=300, progress=False, **options
        )
        return decorate(entry.step).plan(*args)

    free = planned(goals=[ps.Fastest()], remat=False)
    plan = planned(goals=[ps.Fit(0.7 * free.cost.peak_bytes), ps.Fastest()])
    assert plan.remat
    assert plan.known_bound is None
    plan.save(tmp_path / "plan.json")
    assert plan.bound is not None
    assert plan.known_bound == plan.bound
    fastest = free.searches[0].cost.seconds  # of the folded program, as the bound
    assert 0.9 * fastest < plan.bound.seconds <= fastest * (1 + 1e-6)
    assert plan.bound.found == plan.cost.seconds
    loaded = planned(schedule=ps.load_plan(tmp_path / "plan.json"))
    assert loaded.bound == plan.bound


def test_plans_outside_of_the_space_may_take_less_time() -> None:
    bound = PlanBound(1.0, 0.9, ("sub-axes", "padding"))
    assert bound.optimal
    assert bound.nearness == "10.0 % less time"
    assert PlanBound(1.0, 0.99999, ("sub-axes",)).nearness == "optimal"
    assert "than every plan of this space (all tilings and loops" in str(bound)
    assert "without sub-axes, padding, rings, kept copies, pipelines and" in str(bound)
    assert PlanBound.from_json(json.loads(json.dumps(bound.to_json()))) == bound
    assert PlanBound.from_json({"seconds": 1.0, "found": 2.0}) == PlanBound(1.0, 2.0)
    assert not PlanBound(1.0, 1.0 + 1e-4).optimal
    assert PlanBound(1.0, 1.0001).nearness == "within 0.01 %"


def test_steps_without_work_have_a_bound_of_zero() -> None:
    """A step that returns its arguments takes no seconds, and no plan takes fewer."""
    x = jax.ShapeDtypeStruct((8, 8), "float32")
    mesh = jax.sharding.AbstractMesh((4,), ("x",))
    plan = ps.auto_partition(mesh, machine="tpu_v5e")(lambda x: (x,)).plan(x)
    assert plan.cost.seconds == 0.0
    assert plan.bound is not None
    assert plan.bound.optimal
    assert plan.bound.nearness == "optimal"
    assert not PlanBound(0.0, 1.0).optimal
    assert PlanBound(0.0, 1.0).nearness == "within any factor"


@pytest.mark.parametrize("rounding", [-1e-9, 0.0, 1e-9])
def test_a_plan_at_the_bound_has_no_gap(rounding: float) -> None:
    """Neither "-0.0 %" nor "0.01 %": seconds of plan and bound differ by rounding."""
    bound = PlanBound(0.3, 0.3 * (1.0 + rounding))
    assert bound.optimal
    assert f"{bound.gap:.1%}" == "0.0%"
    assert bound.nearness == "optimal"
    assert str(bound).startswith("optimal: no plan")


def test_models_are_of_the_catalog() -> None:
    assert ZOO.keys() <= MODELS.keys()
