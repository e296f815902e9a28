"""What people ask of a plan: other choices, differences, known strategies, tables."""

from __future__ import annotations

import io
import json
import os
import pathlib
from typing import Any

import jax
import pytest
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P
from rich.console import Console

import partir_search as ps
from models.catalog import MODELS

MESH = AbstractMesh((2, 4), ("batch", "model"))


@pytest.fixture(scope="module")
def entry() -> Any:
    return MODELS["transformer-tiny"]


def plan_of(entry: Any, schedule: Any, mesh: Any = MESH, batch: int = 8, **kw: Any) -> ps.Plan:
    step = ps.auto_partition(mesh, machine="tpu_v5e", schedule=schedule, **kw)(entry.step)
    return step.plan(*entry.abstract_args(batch))


@pytest.fixture(scope="module")
def plan(entry: Any) -> ps.Plan:
    return plan_of(entry, [ps.ManualPartition({"batch": 0}, axis="batch")])


def path_of(plan: ps.Plan, end: str) -> str:
    return next(p for p, _, _ in plan.arguments() if p.endswith(end))


def test_what_if_is_what_the_schedule_would_cost(entry: Any, plan: ps.Plan) -> None:
    """One choice changed equals the same plan made by hand; the plan itself stays as it is."""
    path = next(p for p, v, _ in plan.arguments() if "params" in p and len(v.type.shape) == 2)
    before = plan.cost
    asked = plan.what_if(path, P(None, "model"))
    fixed = [
        ps.ManualPartition({path: 1}, axis="model"),
        ps.ManualPartition({path: ps.REPLICATED}, axis="batch"),
        ps.ManualPartition({"batch": 0}, axis="batch"),
    ]
    by_hand = plan_of(entry, fixed)
    assert asked.after.cost == by_hand.cost != before == plan.cost
    assert asked.arguments[path] == (str(P()), str(P(None, "model")))
    assert asked.seconds == by_hand.cost.seconds - before.seconds
    assert asked.peak_bytes == by_hand.cost.peak_bytes - before.peak_bytes
    assert not asked.dropped
    again = plan_of(entry, asked.after)
    assert again.cost == asked.after.cost


@pytest.mark.parametrize(
    ("name", "strategy"),
    [
        ("transformer-tiny", "BP(batch+model)+Z3"),
        ("llama-tiny", "BP(batch+model.0)+MP(model.1)+Z3"),
    ],
)
def test_what_if_of_the_plans_own_shardings_is_the_plan(name: str, strategy: str) -> None:
    """A choice that agrees with the plan changes nothing; made first, it would reach activations.

    Sub-axes are named as the plan names them.
    """
    entry = MODELS[name]
    step = ps.auto_partition(MESH, machine="tpu_v5e")(entry.step)
    plan = step.known_plans(*entry.abstract_args(64))[strategy]
    tiled = [(path, spec) for path, _, spec in plan.arguments() if "params" in path and spec != P()]
    assert any("model.0" in str(spec) for _, spec in tiled) == ("model.0" in strategy)
    for path, spec in tiled:
        asked = plan.what_if(path, spec)
        assert asked.seconds == asked.peak_bytes == 0.0, path
        assert not asked.dropped
        assert not asked.arguments


def test_figures_for_logs(plan: ps.Plan) -> None:
    """Numbers by name: the cost, its bytes by axis and kind, and the limit."""
    figures = plan.figures
    assert figures["seconds"] == plan.cost.seconds
    assert figures["bytes_by_axis/batch"] == plan.cost.bytes_by_axis["batch"] > 0
    kinds = {n.partition("/")[2] for n in figures if n.startswith("bytes_by_kind/")}
    assert kinds == set(plan.cost.bytes_by_kind)
    assert figures["memory_limit"] == plan.memory_limit
    assert {type(figure) for figure in figures.values()} == {float}


def test_what_if_drops_what_contradicts(plan: ps.Plan) -> None:
    asked = plan.what_if("batch", P())
    assert [str(a) for a in asked.dropped] == [str(a) for a in plan.actions]
    assert asked.arguments["batch"] == (str(P("batch")), str(P()))
    assert asked.peak_bytes > 0
    text = str(asked)
    assert "left out: " in text
    assert str(P("batch")) in text


def test_what_if_refuses(plan: ps.Plan) -> None:
    with pytest.raises(ValueError, match="no argument 'tokens'; near it are"):
        plan.what_if("tokens", P())
    with pytest.raises(ValueError, match="axis 'rows' is not in the mesh"):
        plan.what_if("batch", P("rows"))


def test_compare(entry: Any, plan: ps.Plan) -> None:
    other = plan_of(entry, [ps.ManualPartition({"batch": 0}, axis="model")])
    found = ps.compare(plan, other)
    assert found.seconds == other.cost.seconds - plan.cost.seconds
    assert found.arguments["batch"] == (str(P("batch")), str(P("model")))
    sent = {g.axes: pair for g, pair in found.collectives.items() if g.kind == "all_reduce"}
    assert sent[("batch",)][1] == 0 < sent[("batch",)][0]
    assert sent[("model",)][0] == 0 < sent[("model",)][1]
    assert not ps.compare(plan, plan).collectives
    assert not ps.compare(plan, plan).arguments


def test_known_strategies(entry: Any) -> None:
    found = ps.known_strategies(entry.step, MESH, *entry.abstract_args(8), machine="tpu_v5e")
    names = list(found)
    assert any("MP" in n for n in names)
    assert any("Z3" in n for n in names)
    seconds = [found[n].cost.seconds for n in names if found[n].fits]
    assert seconds == sorted(seconds)
    assert names[0] in str(found)
    best = plan_of(entry, None, episodes=20)
    assert best.cost.seconds <= seconds[0]


def test_report(plan: ps.Plan) -> None:
    console = Console(width=160, record=True, file=io.StringIO())
    plan.report(console)
    text = console.export_text()
    assert f"{plan.cost.seconds * 1e3:.3f}" in text
    assert "replicated arguments" in text
    assert "nothing reached it" in text
    where = next(c.source for c in plan.collectives)
    assert where.removeprefix(os.getcwd() + os.sep) in text


# Keep ------------------------------------------------------------------------------------------


def test_saved_plans_are_readable_and_replay_on_other_meshes(
    entry: Any, plan: ps.Plan, tmp_path: pathlib.Path
) -> None:
    plan.save(tmp_path / "plan.json")
    data = json.loads((tmp_path / "plan.json").read_text())
    batch = data["arguments"]["batch"]
    assert batch["spec"] == str(P("batch"))
    assert batch["type"].startswith("i32[8,")
    assert data["versions"]["jax"] == jax.__version__
    saved = ps.load_plan(tmp_path / "plan.json")
    larger = plan_of(entry, saved, AbstractMesh((8, 8), ("batch", "model")))
    assert larger.actions == plan.actions
    assert larger.partition_specs[0][1] == P("batch")
    with pytest.raises(ValueError, match=r"with axes \['batch', 'model'\], this is .*\['x', 'y'\]"):
        plan_of(entry, saved, AbstractMesh((2, 4), ("x", "y")))
    with pytest.raises(
        ValueError, match=r"where it does not hold: .*does not divide by axis 'batch'"
    ):
        plan_of(entry, saved, AbstractMesh((16, 4), ("batch", "model")))


def test_a_changed_function(entry: Any, plan: ps.Plan, tmp_path: pathlib.Path) -> None:
    """What differs is said exactly; what still holds is applied if asked to."""
    plan.save(tmp_path / "plan.json")
    with pytest.raises(ValueError, match=r"batch: i32\[8,.*\] became i32\[4,"):
        plan_of(entry, ps.load_plan(tmp_path / "plan.json"), batch=4)
    partial = ps.load_plan(tmp_path / "plan.json", on_change="apply")
    with pytest.warns(UserWarning, match="became i32.*what still holds of it is applied"):
        again = plan_of(entry, partial, batch=4)
    assert again.actions == plan.actions
    with pytest.warns(UserWarning, match="left out: .*does not divide"):
        left = plan_of(entry, partial, batch=1)
    assert not left.actions


def test_hand_edited_plan(entry: Any, plan: ps.Plan, tmp_path: pathlib.Path) -> None:
    plan.save(tmp_path / "plan.json")
    data = json.loads((tmp_path / "plan.json").read_text())
    data["actions"][0]["axis"] = "model"
    (tmp_path / "plan.json").write_text(json.dumps(data))
    again = plan_of(entry, ps.load_plan(tmp_path / "plan.json"))
    assert again.partition_specs[0][1] == P("model")
