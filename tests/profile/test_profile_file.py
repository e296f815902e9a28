"""Profile files: round trip, merging, refusals, ratios of segments."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import threading

import pytest

from partir_search.profile.entries import (
    CollectivePart,
    KernelPart,
    MeasuredCollective,
    MeasuredProduct,
    MeasuredSegment,
    fit_line,
    group_of,
)
from partir_search.profile.profile import Profile, load_profile
from partir_search.profile.ratios import fit
from partir_search.simulator.target.machine import MACHINES, find_machine

DOT = KernelPart("contraction float32", "dot_general+0:1", (8, 16, 32), 2.0)
WIDE = dataclasses.replace(DOT, sizes=(8, 16, 64))
ADD = KernelPart("elementwise float32", "add+1:2", (8, 16), 1.0)


def full(machine: str = "cpu") -> Profile:
    """Profile with an entry of every kind."""
    sizes, seconds = (1024, 2048), (1e-3, 1.5e-3)
    return dataclasses.replace(
        Profile.empty(machine),
        rates={"hbm_bytes_per_s": 5e9, "kernel_seconds": 1e-5},
        collectives=(MeasuredCollective.fitted("all_gather", ((4, 2),), sizes, seconds),),
        products=(MeasuredProduct("float32", (1, 64, 64, 256), 3e10),),
        segments={
            "a": MeasuredSegment(
                *(4.0, "devices", (DOT, ADD)),
                collectives=(CollectivePart("all_gather", ((4, 2),), 0.5),),
                label="forward",
            )
        },
    )


def test_round_trip(tmp_path: pathlib.Path) -> None:
    saved = full().save(tmp_path / "deep" / "here.json")
    found = load_profile(tmp_path / "deep" / "here.json")
    assert found == saved == full()
    assert found.digest == full().digest
    text = str(found)
    for word in ("all_gather", "4 by 2", "float32", "forward", "30"):
        assert word in text


def test_files_merge(tmp_path: pathlib.Path) -> None:
    """New entries replace those of equal keys; all others stay, whoever wrote them."""
    path = tmp_path / "here.json"
    first = full().save(path)
    slower = dataclasses.replace(first.segments["a"], seconds=5.0)
    other = dataclasses.replace(
        Profile.empty("cpu"),
        rates={"kernel_seconds": 2e-5},
        segments={"a": slower, "b": MeasuredSegment(1.0, "devices", (ADD,))},
    )
    merged = other.save(path)
    assert merged == load_profile(path)
    assert merged.rates == {"hbm_bytes_per_s": 5e9, "kernel_seconds": 2e-5}
    assert merged.collectives == first.collectives
    assert [s.seconds for s in merged.segments.values()] == [5.0, 1.0]
    with pytest.raises(ValueError, match="machine 'cpu' and 'h100' cannot be merged"):
        full().merged(full("h100"))


def test_writers_at_once_lose_nothing(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "here.json"

    def write(name: str) -> None:
        for i in range(5):
            segment = MeasuredSegment(1.0, "devices", (ADD,))
            dataclasses.replace(Profile.empty("cpu"), segments={f"{name}{i}": segment}).save(path)

    threads = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(load_profile(path).segments) == 20


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("no json", "holds no profile: Expecting value"),
        ("[1]", "holds no profile: it has no segments"),
        (json.dumps({"flops_per_s": {}}), "pass it as machine="),
        (json.dumps(full().to_json() | {"format": 0}), "format 0; this version reads 1"),
        (json.dumps(full().to_json() | {"rates": {"speed": 1}}), "rates \\['speed'\\]"),
        (json.dumps({"format": 1, "segments": {}, "rates": {}}), "it has no 'machine'"),
    ],
)
def test_files_that_hold_no_profile(tmp_path: pathlib.Path, content: str, message: str) -> None:
    (tmp_path / "here.json").write_text(content)
    with pytest.raises(ValueError, match=message) as error:
        load_profile(tmp_path / "here.json")
    assert "python -m experiments.calibrate" in str(error.value)
    with pytest.raises(OSError, match="there is no profile"):
        load_profile(tmp_path / "missing.json")
    with pytest.raises(TypeError, match=r"a partir_search\.Profile or the path"):
        load_profile(3)  # type: ignore[arg-type]


def test_other_machines_and_versions_are_refused() -> None:
    cpu = MACHINES["cpu"]
    assert cpu.with_profile(full()).kernel_seconds == 1e-5
    assert cpu.with_profile(full()).attained_hbm_bytes_per_s == 5e9
    with pytest.raises(ValueError, match=r"measured on 'h100', .*pass machine='h100'"):
        cpu.with_profile(full("h100"))
    with pytest.raises(ValueError, match=r"with jax 0.1, and this is jax .*measure again"):
        cpu.with_profile(dataclasses.replace(full(), jax="0.1"))
    with pytest.raises(ValueError, match=r"with jaxlib 0.1, and this is jaxlib .*measure again"):
        cpu.with_profile(dataclasses.replace(full(), xla="jaxlib 0.1"))
    absent = dataclasses.replace(full(), xla="compiler_of_nobody 3")
    assert cpu.with_profile(absent).profile is absent  # its version cannot be known here


def test_machines_are_saved_without_their_profile(tmp_path: pathlib.Path) -> None:
    MACHINES["cpu"].with_profile(full()).save(tmp_path / "m.json")
    assert find_machine(tmp_path / "m.json").profile is None


def test_groups() -> None:
    """Size and stride; neighbours join, axes of one device vanish."""
    assert group_of([(4, 2)]) == ((4, 2),)
    assert group_of([(4, 2), (2, 1)]) == group_of([(2, 1), (4, 2)]) == ((8, 1),)
    assert group_of([(2, 8), (1, 8), (2, 1)]) == ((2, 8), (2, 1))


@pytest.mark.parametrize(("alpha", "beta"), [(1e-4, 1e-9), (0.0, 1e-9), (1e-4, 0.0)])
def test_lines(alpha: float, beta: float) -> None:
    sizes = (2**10, 2**14, 2**20)
    found = fit_line(sizes, [alpha + beta * n for n in sizes])
    assert found == pytest.approx((alpha, beta), abs=1e-15)


def test_lines_have_no_negative_side() -> None:
    alpha, beta = fit_line((1e3, 1e6), (1e-6, 1e-2))
    assert alpha == 0.0
    assert beta > 0


def test_ratios_agree_with_all_segments() -> None:
    """Sums of corrected parts are the measured seconds, if any ratios give them."""
    segments = [
        MeasuredSegment(7.0, "devices", (DOT, ADD)),  # as 3 x 2 + 1 x 1
        MeasuredSegment(6.5, "devices", (DOT,), rest=0.5),
        MeasuredSegment(13.0, "devices", (WIDE, ADD)),
    ]
    ratios = fit(segments)
    sizes = ratios.of_sizes()
    for segment in segments:
        total = sum(sizes[p.content, p.sizes] * p.seconds for p in segment.kernels)
        assert total + segment.rest == pytest.approx(segment.seconds, rel=0.05)
    assert sizes[DOT.content, DOT.sizes] == pytest.approx(3.0, rel=0.1)


def test_unknown_kernels_take_a_coarser_ratio() -> None:
    """By default that of everything measured; 1 without segments."""
    ratios = fit([MeasuredSegment(12.0, "devices", (DOT, WIDE)), MeasuredSegment(1.0, "x", (ADD,))])
    for kernel in (
        (DOT.kind, DOT.content),
        (ADD.kind, "mul+0:0"),
        ("gather float32", "gather+0:0"),
    ):
        assert ratios.of_kernel(*kernel) == pytest.approx(13 / 5, rel=0.1)
        assert fit([]).of_kernel(*kernel) == 1.0
        assert dataclasses.replace(ratios, fallback="").of_kernel(*kernel) == 1.0
    finer = dataclasses.replace(ratios, fallback="content")
    assert finer.of_kernel(DOT.kind, DOT.content) == pytest.approx(3.0, rel=0.02)
    assert finer.of_kernel(DOT.kind, "dot_general+9:9") == pytest.approx(3.0, rel=0.02)
    assert finer.of_kernel(ADD.kind, "mul+0:0") == pytest.approx(1.0, rel=0.02)


def test_stale_parts_are_left_out() -> None:
    """Segments that were simulated with other figures of the machine correct nothing."""
    profile = full()
    own = MeasuredSegment(3.0, "devices", (ADD,), basis=profile.basis)
    stale = MeasuredSegment(100.0, "devices", (ADD,), basis="of another day")
    kept = dataclasses.replace(profile, segments={"a": own, "b": stale})
    assert kept.ratios.of_kernel(ADD.kind, ADD.content) == pytest.approx(3.0)


def test_collectives_have_ratios_of_their_own() -> None:
    link = CollectivePart("all_gather", ((4, 2),), 1.0)
    segments = [MeasuredSegment(3.0, "x", (ADD,), (link,)), MeasuredSegment(1.0, "x", (ADD,))]
    ratios = fit(segments)
    assert ratios.of_links(("all_gather", ((4, 2),))) == pytest.approx(2.0, rel=0.05)
    assert ratios.of_links(("all_gather", ((2, 1),))) == 1.0
    assert ratios.of_kernel(ADD.kind, ADD.content) == pytest.approx(1.0, rel=0.05)
