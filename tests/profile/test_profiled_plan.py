"""Plans measured until the plan found has been measured itself; most measurements are made up."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import pytest
from jax.sharding import AxisType

import partir_search as ps
from models.catalog import MODELS
from partir_search.lowering.local_ir import Reshard
from partir_search.plan.measured_share import measured_share
from partir_search.profile.profile import Profile, load_profile
from partir_search.profiling import profiled
from partir_search.profiling.segments import Method, entry_key, is_measured
from partir_search.segments.measure.measured import Measured
from partir_search.segments.segment import Segment
from tests.test_confirm import arguments, partitioned


class Made:
    """Measurement of no device: simulated seconds times a factor, for segments with some kinds of
    collectives and for all others.
    """

    def __init__(self, factor: float, slow: float = 1.0, kinds: Sequence[str] = ()) -> None:
        self.factor, self.slow, self.kinds = factor, slow, set(kinds)
        self.keys: list[str] = []

    def measure(self, segments: Sequence[Segment], done: Any) -> Mapping[str, Measured]:
        found = {}
        for each in segments:
            kinds = {item.step.kind for item in each.steps if isinstance(item, Reshard)}
            factor = self.slow if kinds & self.kinds else self.factor
            seconds = each.simulated.seconds * factor
            found[each.key] = Measured(seconds, math.nan, 0.0, 3, 10)
            self.keys.append(each.key)
            done(each.name)
        return found

    def method(self, *_: Any) -> Method:
        return Method("made up", None, self.measure)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    found = Made(2.0)
    monkeypatch.setattr(profiled, "_method", found.method)
    return found


def test_a_plan_is_settled_once_it_is_measured(made: Made, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "here.json"
    found = ps.profiled_plan(
        partitioned(episodes=5), *arguments(1024), profile=path, progress=False
    )
    assert found.settled
    assert [r.new for r in found.rounds][-1] == 0
    assert sum(r.new for r in found.rounds) == len(made.keys) == len(set(made.keys))
    assert found.profile == load_profile(path)
    segments = found.plan.segments()
    assert is_measured(segments, made.method(), found.profile)
    entry = found.profile.segments[entry_key(segments.unique[0], made.method())]
    assert (entry.by, entry.runs, entry.temp_bytes) == ("made up", 3, 10)
    assert entry.label == segments.unique[0].name
    # All kernels took twice their time: the next prediction says so, as the report does.
    plain = partitioned(schedule=found.plan).plan(*arguments(1024))
    assert found.plan.cost.seconds == pytest.approx(2 * plain.cost.seconds, rel=0.05)
    assert found.seconds == pytest.approx(found.plan.cost.seconds, rel=0.05)
    share = measured_share(found.plan)
    assert share is not None
    assert share.total > 0.9
    text = str(found)
    assert "settled" in text
    assert "newly measured" in text


def test_a_second_run_takes_everything_from_the_file(made: Made, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "here.json"
    first = ps.profiled_plan(partitioned(episodes=5), *arguments(), profile=path, progress=False)
    count = len(made.keys)
    again = ps.profiled_plan(partitioned(episodes=5), *arguments(), profile=path, progress=False)
    assert len(made.keys) == count
    assert again.settled
    assert again.rounds[0].new == 0
    assert again.profile == first.profile


def test_a_plan_that_measures_badly_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments with the collectives of the usual plan take a hundred times their time."""
    usual = partitioned(episodes=5).plan(*arguments(2048))
    kinds = [kind for kind, n in usual.collective_counts.items() if n]
    assert kinds
    slow = Made(1.0, slow=100.0, kinds=kinds)
    monkeypatch.setattr(profiled, "_method", slow.method)
    empty = Profile.empty("tpu_v5e")
    found = ps.profiled_plan(
        partitioned(episodes=5), *arguments(2048), profile=empty, progress=False
    )
    assert found.rounds[0].measured > 10 * found.rounds[0].simulated
    assert found.seconds < found.rounds[0].measured / 5
    assert found.plan.to_json()["actions"] != usual.to_json()["actions"]


def test_refusals(tmp_path: pathlib.Path) -> None:
    step, path = partitioned(), tmp_path / "here.json"
    with pytest.raises(ValueError, match=r"an AbstractMesh has none: .*target='one device'"):
        ps.profiled_plan(step, *arguments(), profile=path)
    with pytest.raises(TypeError, match="takes what auto_partition returned"):
        ps.profiled_plan(lambda x: x, *arguments(), profile=path)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="rounds must be at least 1"):
        ps.profiled_plan(step, *arguments(), profile=path, rounds=0)
    Profile.empty("h100").save(path)
    with pytest.raises(ValueError, match="measured on 'h100'"):
        ps.profiled_plan(step, *arguments(), profile=path)


def test_on_devices(tmp_path: pathlib.Path) -> None:
    """Segments of a small step run on 8 CPU devices."""
    mesh = jax.make_mesh((2, 4), ("data", "model"), (AxisType.Auto,) * 2)
    path = tmp_path / "here.json"
    step = partitioned(mesh, machine="cpu", episodes=10)
    found = ps.profiled_plan(step, *arguments(32), profile=path, rounds=1, near=0, runs=1)
    assert not found.settled
    entries = load_profile(path).segments
    assert entries
    assert all(each.by == "devices" and each.kernels for each in entries.values())
    assert found.seconds == pytest.approx(sum(each.seconds for each in entries.values()))


def test_plans_for_many_devices_measured_on_one(tmp_path: pathlib.Path) -> None:
    """An abstract mesh; kernels are measured, exposed seconds of collectives are simulated."""
    mesh = jax.sharding.AbstractMesh((4, 2), ("data", "model"), (AxisType.Auto,) * 2)
    entry = MODELS["gpt-tiny"]
    step = ps.auto_partition(mesh, machine="cpu", episodes=5, progress=False)(entry.step)
    path = tmp_path / "one.json"
    options = {"target": "one device", "near": 0, "runs": 1, "rounds": 1, "progress": False}
    found = ps.profiled_plan(step, *entry.abstract_args(16), profile=path, **options)
    segments = load_profile(path).segments
    assert segments
    assert all(key.startswith("one device ") for key in segments)
    for each in segments.values():
        assert each.by == "one device"
        assert not each.collectives
        assert each.total >= each.seconds >= 0
    assert found.seconds > 0
