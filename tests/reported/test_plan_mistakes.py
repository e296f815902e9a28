"""Mistakes in uses of a plan, plan files, machine files and caches."""

from __future__ import annotations

import copy
import dataclasses
import json
import pathlib
import pickle
import re
from collections.abc import Callable
from typing import Any

import pytest
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P

import partir_search as ps
from tests.reported.mistakes import (
    MESH,
    STATE,
    decorated,
    planned,
    rows,
    says,
    step,
)


@pytest.fixture(scope="module")
def plan() -> ps.Plan:
    made: ps.Plan = planned(schedule=[ps.ManualPartition({"batch": 0}, "batch")])
    return made


USES: dict[str, tuple[Callable[[ps.Plan], Any], str]] = {
    "what_if text": (lambda p: p.what_if("batch/x", "model"), "write jax.P('model')"),  # type: ignore[arg-type]
    "what_if tuple": (lambda p: p.what_if("batch/x", ("a", "b")), "write jax.P('a', 'b')"),  # type: ignore[arg-type]
    "what_if none": (lambda p: p.what_if("batch/x", None), "spec is a PartitionSpec or NamedS"),  # type: ignore[arg-type]
    "what_if path": (lambda p: p.what_if(3, P()), "what_if: path is a string"),  # type: ignore[arg-type]
    "explain path": (lambda p: p.explain(3), "explain: path is a string"),  # type: ignore[arg-type]
    "explain typo": (lambda p: p.explain("batch/z"), "no argument or value 'batch/z'; near it"),
    "explain nothing": (lambda p: p.explain(""), "explain: path is empty"),
    "scope": (lambda p: p.ir("decoder"), "ir: no op was traced under 'decoder'"),
    "scope number": (lambda p: p.ir(3), "ir: scope is a string"),  # type: ignore[arg-type]
    "report": (lambda p: p.report("page.html"), "a page is written by save_report(path)"),  # type: ignore[arg-type]
    "why_replicated": (
        lambda p: p.why_replicated("batch/x"),
        "explain(path) takes an argument's path",
    ),  # type: ignore[arg-type]
    "check": (
        lambda p: decorated().check(STATE, rows(), plan="p"),
        "plan is a Plan or what",
    ),
    "names' path": (
        lambda p: p.logical_axis_rules({"w1": ("a", "b")}, "state/param"),
        "no argument 'state/param/w1' to give logical names to; near it are: state/params/w1",
    ),
    "names' rank": (
        lambda p: p.logical_axis_rules({"w1": ("a",)}, "state/params"),
        "state/params/w1, of shape (8, 16), are a tuple of a name or None for each of 2 dims",
    ),
    "target": (lambda p: p.verify("h100:8"), "did you mean 'gpu_h100'?"),
    "target number": (lambda p: p.verify(8), "a target is a machine and its topology"),  # type: ignore[arg-type]
    "compare": (lambda p: ps.compare(p, "other"), "compare: after is a Plan, not 'other'"),  # type: ignore[arg-type]
    "batch": (lambda p: p.make_global_batch({"x": 1}), "no argument of 'step' has the structure"),
    "state": (lambda p: p.skew({"w": 1}), "pass a whole argument of the step"),
    "pickle": (pickle.dumps, "write it with plan.save(path), and pass partir_search.load_plan"),
    "deepcopy": (copy.deepcopy, "write it with plan.save(path)"),
    "save nowhere": (lambda p: p.save(3), "path is a path"),  # type: ignore[arg-type]
    "save to a folder": (lambda p: p.save("/"), "cannot write /: it is a folder; give the path"),
    "save below a file": (lambda p: p.save(f"{__file__}/p.json"), "there is a file of that name"),
    "page to a folder": (lambda p: p.save_report("/"), "cannot write /: it is a folder"),
}


@pytest.mark.parametrize("case", sorted(USES))
def test_uses_of_a_plan(case: str, plan: ps.Plan) -> None:
    use, message = USES[case]
    with says(message):
        use(plan)


def test_copies(plan: ps.Plan) -> None:
    assert copy.copy(plan).actions == plan.actions
    function = decorated()
    assert copy.deepcopy({"step": function})["step"] is function
    with says("step is partitioned for this process's devices and cannot be pickled"):
        pickle.dumps(function)


def test_experts_name_the_nearest(plan: ps.Plan) -> None:
    known = ps.known_strategies(step, MESH, STATE, rows(), machine="cpu")
    with pytest.raises(KeyError, match=r"no strategy 'BP\(bach\)'; .*did you mean 'BP\(batch\)'"):
        known["BP(bach)"]


def edited(plan: ps.Plan, **changes: Any) -> str:
    data = {k: v for k, v in {**plan.to_json(), **changes}.items() if v is not ...}
    return json.dumps(data)


FILES: dict[str, tuple[Callable[[ps.Plan], str], str]] = {
    "no JSON": (lambda p: "plan", "it is no JSON, or was cut off"),
    "cut off": (lambda p: edited(p)[:200], "it is no JSON, or was cut off"),
    "a list": (lambda p: "[]", "it holds []; write plans with plan.save(path)"),
    "nothing": (lambda p: "{}", "it has no 'format' (it has nothing)"),
    "older": (lambda p: edited(p, format=1), "format 1, this version of partir_search reads 2; pl"),
    "no mesh": (lambda p: edited(p, mesh=...), "it has no 'mesh'"),
    "mesh list": (lambda p: edited(p, mesh=[2, 4]), "its 'mesh' are axes and their sizes, not [2"),
    "mesh empty": (lambda p: edited(p, mesh={}), "its mesh has no axes"),
    "mesh text": (lambda p: edited(p, mesh={"batch": "2"}), "size of mesh axis 'batch' is a whole"),
    "actions": (lambda p: edited(p, actions=3), "its 'actions' are a list of actions, not 3"),
    "action": (lambda p: edited(p, actions=[{"tiel": "x"}]), "not an action: {'tiel': 'x'}"),
    "action's dim": (lambda p: edited(p, actions=[{"tile": "batch.x"}]), "it has no 'dim'"),
    "arguments": (lambda p: edited(p, arguments=[]), "its 'arguments' are arguments by path, not"),
    "argument": (lambda p: edited(p, arguments={"batch/x": "P()"}), "are a type and a spec, not "),
    "remat": (
        lambda p: edited(p, remat=[[1]]),
        "its 'remat' are lists of two positions or more, not [[1]]",
    ),
    "machine": (
        lambda p: json.dumps(dataclasses.asdict(p.machine)),
        "it holds a machine: pass its path as machine=",
    ),
}


@pytest.mark.parametrize("case", sorted(FILES))
def test_plan_files(case: str, plan: ps.Plan, tmp_path: pathlib.Path) -> None:
    write, message = FILES[case]
    path = tmp_path / "plan.json"
    path.write_text(write(plan))
    with pytest.raises(ValueError, match=re.escape(f"{path} is not a plan that can be read: ")):
        ps.load_plan(path)
    with says(message):
        ps.load_plan(path)


def test_plan_files_that_are_not_there(plan: ps.Plan, tmp_path: pathlib.Path) -> None:
    plan.save(tmp_path / "made" / "on the way" / "plan.json")
    plan.save_report(tmp_path / "page" / "report.html")
    with pytest.raises(FileNotFoundError, match=r"there is no plan at .*plna.json; .* has plan"):
        ps.load_plan(tmp_path / "made" / "on the way" / "plna.json")
    with pytest.raises(IsADirectoryError, match="it is a folder; give the path of a file"):
        ps.load_plan(tmp_path)


def test_plan_of_another_jax_is_warned_of_once(plan: ps.Plan, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(edited(plan, versions={"jax": "0.4.1"}))
    with pytest.warns(
        UserWarning, match=r"was made with jax 0\.4\.1, this is .*save the plan again"
    ) as w:
        saved = ps.load_plan(path)
    assert len(w) == 1
    planned(schedule=saved).save(path)
    ps.load_plan(path)


def test_plan_that_names_what_is_not_there(plan: ps.Plan, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(edited(plan, actions=[{"tile": "batch.z", "dim": 0, "axis": "batch"}]))
    with says("the program has no value 'batch/z'; near it are: batch/x, batch/y"):
        planned(schedule=ps.load_plan(path))
    with says(f"{path} holds no machine: it holds a plan"):
        ps.auto_partition(MESH, machine=path)


RECORDS: dict[str, tuple[str, dict[str, str] | None, str]] = {
    "spec": (
        "batch/x",
        {"spec": "P('model')"},
        "batch/x has spec \"P('model')\" there, the actions make \"P('batch',)\"",
    ),
    "spec longer": ("batch/x", {"spec": "P('batch', 'model')"}, "the actions make"),
    "no spec": ("batch/x", {"spec": "batch"}, "batch/x has spec 'batch' there"),
    "type": ("batch/x", {"type": "bf16[16,8]"}, "has type 'bf16[16,8]' there, the program has 'f3"),
    "path": ("batch/z", {"type": "f32[16,8]"}, "it has 'batch/z', no argument; did you mean 'batc"),
}


@pytest.mark.parametrize("case", sorted(RECORDS))
def test_record_of_arguments_is_held_against_the_actions(
    case: str, plan: ps.Plan, tmp_path: pathlib.Path
) -> None:
    """An edit of the record, which a replay does not read, is an error with a remedy."""
    argument, change, message = RECORDS[case]
    record = plan.to_json()["arguments"]
    record[argument] = {**record.get(argument, {}), **(change or {})}
    path = tmp_path / "plan.json"
    path.write_text(edited(plan, arguments=record))
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        planned(schedule=ps.load_plan(path))
    assert "Edit 'actions', or write tactics, ps.ManualPartition(" in str(caught.value)
    with pytest.warns(UserWarning, match="are a record of what its actions make"):
        applied = planned(schedule=ps.load_plan(path, on_change="apply"))
    assert applied.actions == plan.actions


def test_record_of_arguments_in_other_words(plan: ps.Plan, tmp_path: pathlib.Path) -> None:
    """Equal specs are no difference, nor those of a mesh of other sizes, nor a missing record."""
    record = plan.to_json()["arguments"]
    record["batch/x"]["spec"] = "PartitionSpec( 'batch', None)"
    del record["batch/y"]["spec"]
    del record["state/params/w1"]
    path = tmp_path / "plan.json"
    path.write_text(edited(plan, arguments=record))
    saved = ps.load_plan(path)
    assert planned(schedule=saved).actions == plan.actions
    mesh = AbstractMesh((4, 2), ("batch", "model"))
    record["batch/x"]["spec"] = "P('model')"
    path.write_text(edited(plan, arguments=record))
    other = planned(schedule=ps.load_plan(path), mesh=mesh)
    assert other.actions == plan.actions


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hbm_bytes": ...}, "figures are missing: 'hbm_bytes'"),
        ({"hbm_byte": 3}, "it has a figure 'hbm_byte'; did you mean 'hbm_bytes'?"),
        ({"flops_per_s": 3}, "flops_per_s maps names to numbers, not 3"),
        ({"torus": "yes"}, "torus is True or False, not 'yes'"),
    ],
)
def test_machine_files(change: dict[str, Any], message: str, tmp_path: pathlib.Path) -> None:
    data = {**dataclasses.asdict(ps.MACHINES["cpu"]), **change}
    path = tmp_path / "here.json"
    path.write_text(json.dumps({k: v for k, v in data.items() if v is not ...}))
    with pytest.raises(ValueError, match=re.escape(f"{path} holds no machine: ")) as caught:
        ps.auto_partition(MESH, machine=str(path))
    assert message in str(caught.value)


def test_cache_that_cannot_be_written_loses_no_plan(tmp_path: pathlib.Path) -> None:
    cached = decorated(cache=tmp_path / "plans", schedule=None, progress=None, episodes=3)
    (tmp_path / "plans").rmdir()
    (tmp_path / "plans").write_text("no folder any more")
    with pytest.warns(UserWarning, match="cache: the plan cannot be stored at .*search again"):
        assert cached.plan(STATE, rows()).fits
