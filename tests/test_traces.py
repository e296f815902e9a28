"""The simulated step as trace events, and measured profiles beside it."""

from __future__ import annotations

import gzip
import itertools
import json
import pathlib
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh

import partir_search as ps
from partir_search.aot.protobuf import Message
from partir_search.ir.pipeline_schedule import PipelineSchedule
from partir_search.plan.profiles.comparison import row_of
from partir_search.plan.profiles.schedule_events import schedule_events
from partir_search.plan.profiles.trace_events import trace_events
from partir_search.plan.profiles.xplane import read_xplane
from partir_search.simulator.timeline import Event, Timeline

SCHEDULE = [
    ps.ManualPartition({"batch": 0}, axis="batch"),
    ps.ManualPartition({"state/*/w1": 1}, axis="model"),
]


def step(state: Any, batch: Any) -> Any:
    def loss(params: Any) -> Any:
        with jax.named_scope("forward"):
            hidden = jnp.tanh(batch @ params["w1"])
            hidden, _ = jax.lax.scan(lambda x, _: (jnp.sin(x), None), hidden, length=3)
            return jnp.mean((hidden @ params["w2"]) ** 2)

    grads = jax.grad(loss)(state["params"])
    with jax.named_scope("update"):
        return {"params": jax.tree.map(lambda w, g: w - 0.1 * g, state["params"], grads)}


def abstract(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


STATE = {"params": {"w1": abstract(64, 128), "w2": abstract(128, 64)}}
BATCH = abstract(64, 64)


def partitioned(mesh: Any, **options: Any) -> Any:
    return ps.auto_partition(mesh, schedule=SCHEDULE, **options)(step)


def of_kind(trace: Any, kind: str) -> list[Any]:
    return [e for e in trace["traceEvents"] if e["ph"] == kind]


def test_saved_trace(tmp_path: pathlib.Path) -> None:
    """Tracks are named, disjoint, and together as long as the step; the counter has the peak."""
    mesh = AbstractMesh((2, 4), ("batch", "model"))
    plan = partitioned(mesh, machine="tpu_v5e").plan(STATE, BATCH)
    plan.save_trace(tmp_path / "plan.json.gz")
    plan.save_trace(tmp_path / "new" / "plan.json")
    trace = json.loads(gzip.decompress((tmp_path / "plan.json.gz").read_bytes()))
    assert trace == json.loads((tmp_path / "new" / "plan.json").read_text())
    names = {e["tid"]: e["args"]["name"] for e in of_kind(trace, "M")[1:]}
    assert names[0] == "compute"
    assert {n.partition(" (")[0] for n in names.values()} == {
        *("compute", "links of batch", "links of model")
    }
    tracks: dict[int, list[Any]] = {tid: [] for tid in names}
    for event in of_kind(trace, "X"):
        tracks[event["tid"]].append((event["ts"], event["ts"] + event["dur"], event))
    for found in tracks.values():
        for (_, end, _), (start, _, _) in itertools.pairwise(sorted(found, key=lambda e: e[0])):
            assert start >= end * (1 - 1e-6)
    exposed = sum(e["args"].get("exposed_us", 0) for t in tracks if t for *_, e in tracks[t])
    compute = sum(end - start for start, end, _ in tracks[0])
    assert compute + exposed == pytest.approx(plan.cost.seconds * 1e6, rel=1e-6)
    assert max(c["args"]["bytes"] for c in of_kind(trace, "C")) == pytest.approx(
        plan.cost.peak_bytes
    )
    scopes = {e["args"].get("scope", "") for *_, e in tracks[0]}
    assert {"jvp(forward)", "transpose(jvp(forward))"} <= scopes
    assert any("test_traces.py:" in e["args"].get("source", "") for *_, e in tracks[0])


def test_saved_profile(tmp_path: pathlib.Path) -> None:
    """An XSpace with the events of the JSON: tracks, names, times and stats."""
    mesh = AbstractMesh((2, 4), ("batch", "model"))
    plan = partitioned(mesh, machine="tpu_v5e").plan(STATE, BATCH)
    plan.save_trace(tmp_path / "plan.json")
    plan.save_trace(tmp_path / "plan.xplane.pb")
    trace = json.loads((tmp_path / "plan.json").read_text())
    (plane,) = Message((tmp_path / "plan.xplane.pb").read_bytes()).messages(1)
    assert plane.text(2) == "/device:CUSTOM:" + trace["traceEvents"][0]["args"]["name"]
    labels = {e["tid"]: e["args"]["name"] for e in of_kind(trace, "M")[1:]}
    kinds, stats = ({m.number(1): m.text(2) for m in plane.map(field)} for field in (4, 5))
    found = [
        (
            *(line.text(2), kinds[e.number(1)], e.number(2), e.number(3)),
            {stats[s.number(1)]: s.text(5) for s in e.messages(4) if s.has(5)},
        )
        for line in plane.messages(3)
        for e in line.messages(4)
    ]
    expected = [
        (
            *(labels[e["tid"]], e["name"], round(e["ts"] * 1e6), round(e["dur"] * 1e6)),
            {k: v for k, v in e["args"].items() if k != "exposed_us"},
        )
        for e in of_kind(trace, "X")
    ]
    assert found == expected
    assert "exposed_us" in stats.values()


def test_overlapping_collectives() -> None:
    """Three collectives of one axis, two at a time: on two tracks."""
    events = tuple(
        Event("batch", "all_gather", start, 2.0, 0.5, "", "scope") for start in (0.0, 1.0, 2.0)
    )
    found = trace_events(Timeline(4.0, events, ((0.0, 8.0),), (), 8.0), "step")
    names = [e["args"]["name"] for e in of_kind(found, "M")]
    assert names == ["step", "compute", "links of batch", "links of batch (2)"]
    assert [(e["tid"], e["ts"]) for e in of_kind(found, "X")] == [(1, 0), (1, 2e6), (2, 1e6)]


@pytest.mark.parametrize(
    ("scope", "measured", "row"),
    [
        ("jit(step)/shard_map/jvp(forward)/while/body/inner/tanh", True, "forward"),
        ("jit(step)/transpose(jvp(layer_0))/mlp/dot_general", True, "backward of layer_0/mlp"),
        ("transpose(jvp(layer_0))/mlp", False, "backward of layer_0/mlp"),
        ("jit(step)/shard_map/psum", True, ""),
        ("", True, ""),
    ],
)
def test_rows(scope: str, measured: bool, row: str) -> None:
    """Ops of a loop are in the scope around the loop, in which the simulator has the loop."""
    assert row_of(scope, None, measured) == row


def record(folder: str) -> None:
    """Writes a profile of three steps, and the compiled text as `step.hlo`."""
    mesh = jax.make_mesh((2, 4), ("batch", "model"), devices=jax.devices()[:8])
    f = partitioned(mesh, machine="cpu", donate_argnums=0)
    batch = jnp.ones(BATCH.shape)
    state = f.init(lambda: jax.tree.map(lambda x: jnp.ones(x.shape), STATE), batch)
    text = f.lower(state, batch).compile().as_text()
    (pathlib.Path(folder) / "step.hlo").write_text(text)
    state = jax.block_until_ready(f(state, batch))
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with jax.profiler.trace(folder, profiler_options=options):
        for _ in range(3):
            state = f(state, batch)
        jax.block_until_ready(state)


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The plan, the folder of a profile of three steps, and the compiled text.

    Recorded in a process of its own: the profiler crashes in one that has loaded libtpu.
    """
    folder = tmp_path_factory.mktemp("profile")
    code = "import sys; from tests.test_traces import record; record(sys.argv[1])"
    root = pathlib.Path(__file__).parents[1]
    subprocess.run([sys.executable, "-c", code, str(folder)], cwd=root, check=True, timeout=240)
    mesh = AbstractMesh((2, 4), ("batch", "model"))
    plan = partitioned(mesh, machine="cpu", donate_argnums=0).plan(STATE, BATCH)
    return plan, folder, (folder / "step.hlo").read_text()


@pytest.mark.devices
def test_profile_of_xprof(profiled: Any) -> None:
    """Scopes of both, loops within the scope around, and means over devices and steps."""
    plan, folder, _ = profiled
    found = ps.compare_trace(plan, folder)
    assert found.runs == 3 * 8
    rows = {r.scope: r for r in found.rows}
    assert {"forward", "backward of forward", "update"} <= set(rows)
    for scope in ("forward", "backward of forward"):
        assert rows[scope].predicted > 0
        assert rows[scope].measured > 0
    assert found.predicted == pytest.approx(sum(e.seconds for e in plan.timeline.events))
    (file,) = folder.rglob("*.xplane.pb")
    ops = [op for op in read_xplane(file.read_bytes()) if op.module == "jit_step"]
    assert found.measured == pytest.approx(sum(op.seconds for op in ops) / 24)
    text = str(found)
    assert text.splitlines()[0].split() == ["scope", "predicted", "measured", "ratio"]
    assert text.splitlines()[-1].startswith("all ")
    by_pass = ps.compare_trace(plan, file, depth=0)
    assert [r.scope for r in by_pass.rows] == [""]


@pytest.mark.devices
def test_trace_of_json(profiled: Any, tmp_path: pathlib.Path) -> None:
    """A trace without name stacks needs the compiled program, and agrees with the profile."""
    plan, folder, text = profiled
    (file,) = folder.rglob("*.trace.json.gz")
    with pytest.raises(ValueError, match=r"no name stacks; .*hlo=step\.lower"):
        ps.compare_trace(plan, file)
    found, whole = ps.compare_trace(plan, file, hlo=text), ps.compare_trace(plan, folder)
    assert found.runs == whole.runs
    assert found.measured == pytest.approx(whole.measured, rel=0.2)
    with pytest.raises(FileNotFoundError, match=r"there is no profile in .*jax\.profiler\.trace"):
        ps.compare_trace(plan, tmp_path)
    plan.save_trace(tmp_path / "plan.trace.json")
    with pytest.raises(ValueError, match="has no run of jit_step; it has runs of no program"):
        ps.compare_trace(plan, tmp_path / "plan.trace.json")
    (tmp_path / "broken.xplane.pb").write_bytes(b"\x0a\xff\xff")
    with pytest.raises(ValueError, match="not an encoded message"):
        ps.compare_trace(plan, tmp_path / "broken.xplane.pb")


def test_schedule_of_a_pipeline() -> None:
    """Tracks of stages hold every item once, and fill the seconds without gaps or overlaps."""
    schedule = PipelineSchedule(2, 4, 2)
    found = schedule_events(schedule, 3.0)
    items = [e for e in found if e["ph"] == "X"]
    assert {e["args"]["name"] for e in found if e["name"] == "thread_name"} == {
        "stage 0",
        "stage 1",
    }
    for stage in range(2):
        mine = [e for e in items if e["tid"] == stage]
        names = [e["name"] for e in mine if e["name"] != "idle"]
        assert sorted(names) == sorted(
            f"{k}{m}/{c}" for k in "FB" for m in range(4) for c in (0, 1)
        )
        assert sum(e["dur"] for e in mine) == pytest.approx(3e6)
        starts = [e["ts"] for e in mine]
        assert starts == sorted(starts)
    idle = sum(e["dur"] for e in items if e["name"] == "idle") / sum(e["dur"] for e in items)
    assert idle == pytest.approx(schedule.idle_fraction())
