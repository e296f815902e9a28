"""The option `profile=`: costs, plans, reports and refusals."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import pytest

import partir_search as ps
from partir_search import cli
from partir_search.plan.measured_share import measured_share
from partir_search.profile.entries import MeasuredCollective, MeasuredProduct, MeasuredSegment
from partir_search.profile.profile import Profile
from partir_search.simulator.parts import PartsOf
from partir_search.simulator.time.collectives import same_links
from tests.test_confirm import arguments, partitioned

DATA, MODEL, BOTH = ((2, 4),), ((4, 1),), ((8, 1),)


def lines(slow: tuple[str, ...] = (), groups: Any = (DATA, MODEL, BOTH)) -> Profile:
    """Profile of v5e in which some kinds of collectives take a second."""
    kinds = ("all_gather", "all_reduce", "reduce_scatter", "all_to_all", "collective_permute")
    found = [
        MeasuredCollective(kind, group, (), (), 1.0 if kind in slow else 1e-6, 1e-11)
        for kind in kinds
        for group in groups
    ]
    return dataclasses.replace(Profile.empty("tpu_v5e"), collectives=tuple(found))


def exposed(plan: ps.Plan) -> set[str]:
    return {kind for kind, count in plan.collective_counts.items() if count}


def test_collectives_cost_as_the_file_says(tmp_path: pathlib.Path) -> None:
    """Alpha + beta B each, on groups of the mesh, whatever the axes are called."""
    profile = lines().save(tmp_path / "here.json")
    plan = partitioned(
        schedule=[ps.ManualPartition({"x": 0, "state": ps.REPLICATED}, axis="data")],
        profile=tmp_path / "here.json",
    ).plan(*arguments())
    assert plan.machine.profile == profile
    assert {c.axes for c in plan.collectives} == {("data",)}
    total = sum(1e-6 + 1e-11 * c.bytes for c in plan.collectives)
    assert plan.cost.collective_seconds == pytest.approx(total, rel=1e-6)


def test_a_slow_kind_changes_the_plan() -> None:
    usual = partitioned(episodes=5, profile=lines()).plan(*arguments(2048))
    kinds = tuple(sorted(exposed(usual)))
    assert kinds
    slow = partitioned(episodes=5, profile=lines(kinds)).plan(*arguments(2048))
    assert not exposed(slow) & set(kinds)
    assert slow.cost.seconds < 1.0


def test_kernels_cost_as_measured() -> None:
    """A plan of kernels that all took thrice their time takes thrice its compute; its report says
    how much was measured.
    """
    schedule = [ps.ManualPartition({"x": 0}, axis="data")]
    first = partitioned(schedule=schedule, profile=Profile.empty("tpu_v5e")).plan(*arguments())
    parts = PartsOf(first.planned.model, first.program, first.simulation).whole()
    rest = parts.copies + parts.further + sum(c.seconds for c in parts.collectives)
    total = sum(k.seconds for k in parts.kernels) + rest
    assert total == pytest.approx(first.cost.seconds, rel=1e-3)
    empty = Profile.empty("tpu_v5e")
    kernels = 3 * sum(k.seconds for k in parts.kernels)
    segment = MeasuredSegment(kernels, "test", parts.kernels, basis=empty.basis)
    profile = dataclasses.replace(empty, segments={"all": segment})
    again = partitioned(schedule=schedule, profile=profile).plan(*arguments())
    assert again.cost.seconds - rest == pytest.approx(kernels, rel=0.02)
    share = measured_share(again)
    assert share is not None
    assert share.kernels == pytest.approx(kernels / again.cost.seconds, rel=0.02)
    assert "of the seconds rest on figures of a profile of tpu_v5e" in str(share)
    assert measured_share(partitioned(schedule=schedule).plan(*arguments())) is None


def test_products_cost_by_their_shapes() -> None:
    """The nearest measured product gives the rate: here small ones are slow."""
    rate = ps.MACHINES["tpu_v5e"].matmul_flops_per_s("float32")
    products = tuple(
        MeasuredProduct("float32", (1, n, n, n), rate * share)
        for n, share in ((256, 0.01), (16384, 1.0))
    )
    profile = dataclasses.replace(Profile.empty("tpu_v5e"), products=products)
    schedule: list[Any] = []
    small, large = (
        [
            partitioned(schedule=schedule, profile=p).plan(*arguments(n)).cost.seconds
            for p in (None, profile)
        ]
        for n in (128, 8192)
    )
    assert small[1] > 1.5 * small[0]
    assert large[1] == pytest.approx(large[0], rel=1e-6)


def test_refusals(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "here.json"
    lines().save(path)
    with pytest.raises(ValueError, match=r"here.json was measured on 'tpu_v5e', .* for 'h100'"):
        partitioned(machine="h100", profile=path)
    with pytest.raises(OSError, match="there is no profile"):
        partitioned(profile=tmp_path / "none.json")
    (tmp_path / "machine.json").write_text('{"flops_per_s": {}}')
    with pytest.raises(ValueError, match="pass it as machine="):
        partitioned(profile=tmp_path / "machine.json")


def test_flag(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines().save(tmp_path / "here.json")
    names = ["tests.test_confirm:step", "--args=tests.test_confirm:arguments"]
    where = ["--mesh=data:2,model:4", "--machine=tpu_v5e", "--schedule=bp"]
    assert cli.main(["plan", *names, *where, f"--profile={tmp_path / 'here.json'}"]) == 0
    assert "rest on figures of" in " ".join(capsys.readouterr().out.split())
    assert cli.main(["plan", *names, *where, f"--profile={tmp_path / 'none.json'}"]) != 0


def test_cached_plans_are_of_one_profile(tmp_path: pathlib.Path) -> None:
    """A profile is part of a cached plan's key."""
    steps = [
        partitioned(profile=profile, cache=tmp_path, episodes=1)
        for profile in (None, lines(), lines())
    ]
    for step in steps:
        step.plan(*arguments())
    assert len(list(tmp_path.glob("*.json"))) == 2


def test_axes_of_unlike_links_are_not_exchanged() -> None:
    """Two axes of one size have groups of unlike strides."""
    mesh = ps.MeshShape(("a", "b", "c"), (2, 2, 2))
    machine = ps.MACHINES["tpu_v5e"]
    assert same_links(0, 1, mesh, machine)
    groups = (((2, 4),), ((2, 2),), ((2, 1),))
    alike = machine.with_profile(lines(groups=groups))
    assert same_links(0, 1, mesh, alike)
    (first, *others) = lines(groups=groups).collectives
    slower = dataclasses.replace(first, beta=2 * first.beta)
    profile = dataclasses.replace(lines(), collectives=(slower, *others))
    assert same_links(0, 1, mesh, machine.with_profile(profile))
    assert not same_links(1, 2, mesh, machine.with_profile(profile))


def test_steps_with_a_profile() -> None:
    """The same plans as with the option; a plan is replayed at the profile's prices."""
    schedule, plain = [ps.ManualPartition({"x": 0}, axis="data")], partitioned()
    profile = lines(("all_reduce",))
    wanted = partitioned(schedule=schedule, profile=profile).plan(*arguments())
    found = partitioned(schedule=schedule).with_profile(profile).plan(*arguments())
    assert found.cost == wanted.cost
    assert found.cost.seconds > 1.0
    again = plain.with_profile(profile, wanted)
    assert again.plan(*arguments()).cost == wanted.cost
    assert plain.machine.profile is None
    assert again.machine.profile == profile


def test_plans_near_a_search() -> None:
    plan = partitioned().plan(*arguments(1024))
    near = plan.near(2)
    assert len(near) <= 2
    assert all(each.cost.seconds <= 1.1 * plan.cost.seconds for each in near)
    assert near == [] or near[0].to_json()["actions"] != plan.to_json()["actions"]
    assert partitioned(schedule=[]).plan(*arguments()).near(2) == []
