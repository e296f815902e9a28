"""Tables of pipelines: no faults, the ticks and slots of the formulas; broken tables are found."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable

import numpy as np
import pytest

from partir_search.ir.pipeline_picture import picture, spans
from partir_search.ir.pipeline_schedule import (
    GPIPE,
    ONE_F_ONE_B,
    SCHEDULES,
    Item,
    PipelineSchedule,
)
from partir_search.ir.pipeline_table import PipelineTable, Work, pipeline_table


def _sizes(p: int) -> list[tuple[int, int]]:
    """Microbatches and chunks: any number of microbatches without chunks."""
    alone = {1, 2, 3, 5, 11, p, 2 * p, 3 * p}
    return [(m, 1) for m in sorted(alone)] + [(k * p, v) for k in (1, 2, 3) for v in (2, 4)]


ALL = [
    PipelineSchedule(p, m, v, schedule, split)
    for p in (2, 3, 4, 8)
    for m, v in _sizes(p)
    for schedule in SCHEDULES
    for split in (False, True)
]


def _ids(s: PipelineSchedule) -> str:
    return f"{s.stages}x{s.microbatches}x{s.chunks}-{s.schedule}{'-split' if s.split else ''}"


@pytest.mark.parametrize("s", ALL, ids=_ids)
def test_tables_have_no_fault_and_the_formulas_ticks_and_slots(s: PipelineSchedule) -> None:
    p, m, v = s.stages, s.microbatches, s.chunks
    table = pipeline_table(s)
    assert table.faults() == []
    one = s.schedule == ONE_F_ONE_B
    assert s.ticks == m * v + (v * p - 1 if one else m * v + p - 1) + p - 1
    if not s.split:
        both = m * v + p - v * p
        kinds = [("F", v * p - 1), ("FB", both), ("B", v * p - 1)]
        kinds = kinds if one else [("F", m * v + p - 1), ("B", m * v + p - 1)]
        assert [(phase.kinds, phase.ticks) for phase in s.phases()] == kinds
        assert s.idle_fraction() == pytest.approx((p - 1) / (v * m + p - 1))
    # Seconds of a whole stage: 1 forward, 0.9 gradients of operands, 1.1 of weights.
    f, d, w = 1.0, 0.9, 1.1
    costs = {"F": f / v, "B": (d if s.split else d + w) / v, "W": w / v}
    late = 0.0 if s.split else w
    want = (m + (p - 1) / v) * (f + d + late) + (m * w if s.split else 0)
    assert s.seconds(costs) == pytest.approx(want, rel=1e-12)
    assert 1 - s.idle_fraction(costs) == pytest.approx(m * (f + d + w) / want)
    # Slots: the most items of any tick, and the closed form, device by device.
    last = s.kinds[-1]
    held = []
    for first, end in zip(table.work["F"], table.work[last], strict=True):
        stop = {item: t for t, item in end.items()}
        lives = [(t, stop[item]) for t, item in first.items()]
        held.append(max(sum(a <= t <= b for a, b in lives) for t in range(s.ticks)))
    assert held == [s.in_flight(device) for device in range(p)]
    assert table.residuals.count == max(held)
    assert max(held) / v == pytest.approx(min(m, p + (p - 1) / v) if one else m)
    if s.split:
        assert table.cotangents is not None
        assert table.cotangents.count == min(m * v, p)


def test_in_flight_without_chunks() -> None:
    for p, m in ((4, 3), (4, 16), (8, 8)):
        s = PipelineSchedule(p, m)
        assert [s.in_flight(d) for d in range(p)] == [min(m, 2 * (p - 1 - d) + 1) for d in range(p)]


@pytest.mark.parametrize("how", ["1f1b", "split", "gpipe"])
@pytest.mark.parametrize("v", [1, 2])
@pytest.mark.parametrize("stacks", [2, 3])
def test_stacks_run_one_after_the_other(stacks: int, v: int, how: str) -> None:
    """Each run begins when the first microbatch leaves the run before; B mirrors F.

    With `gpipe` B of the last stack begins after all F.
    """
    p, m, split = 4, 48, how == "split"
    schedule = "1f1b" if split else how
    found = [PipelineSchedule(p, m, v, schedule, split, stacks, k) for k in range(stacks)]
    through, all_forward = v * p - 1, p - 1 + m * v
    for k, s in enumerate(found):
        table = pipeline_table(s)
        assert table.faults() == []
        between = all_forward if how == "gpipe" else through
        assert s.ticks == (2 * stacks - 2) * through + between + all_forward
        most = (v + 1) * p - 1 + 2 * (stacks - 1 - k) * through
        assert table.residuals.count == s.in_flight() == (m * v if how == "gpipe" else most)
        assert (table.cotangents.count if table.cotangents else 0) == (p if split else 0)
        if not split:
            assert s.idle_fraction() == pytest.approx((p - 1) / (m * v + p - 1))
    for earlier, later in itertools.pairwise(map(pipeline_table, found)):
        last = {item: t for t, item in earlier.work["F"][p - 1].items()}
        entered = {j: t for t, j in later.entries().items()}
        assert all(entered[j] == last[Item(v - 1, j)] for j in range(m))
        left = {j: t for t, j in later.exits().items()}
        begun = {j: t for t, j in earlier.heads().items()}
        assert left == begun


def _replaced(table: PipelineTable, kind: str, works: Work) -> PipelineTable:
    return dataclasses.replace(table, work={**table.work, kind: works})


def _swapped(table: PipelineTable) -> PipelineTable:
    """Table in which two neighbours of F on device 1 are run the other way round."""
    work = dict(table.work["F"][1])
    a, b, *_ = sorted(work)
    work[a], work[b] = work[b], work[a]
    return _replaced(table, "F", (table.work["F"][0], work, *table.work["F"][2:]))


def _shifted(table: PipelineTable) -> PipelineTable:
    """Table with B one tick earlier everywhere, and its slots too."""
    works = tuple({t - 1: item for t, item in work.items()} for work in table.work["B"])
    at = {**table.residuals.at, "B": np.roll(table.residuals.at["B"], -1, 1)}
    residuals = dataclasses.replace(table.residuals, at=at)
    return dataclasses.replace(_replaced(table, "B", works), residuals=residuals)


def _one_device_shifted(table: PipelineTable) -> PipelineTable:
    """Table with B one tick earlier on device 0."""
    first, *rest = table.work["B"]
    return _replaced(table, "B", ({t - 1: item for t, item in first.items()}, *rest))


def _slot_less(table: PipelineTable) -> PipelineTable:
    """Table with one slot less, whose blocks share slot 0."""
    fewer = table.residuals.count - 1
    at = {k: np.where(slots == fewer, 0, slots) for k, slots in table.residuals.at.items()}
    slots = dataclasses.replace(table.residuals, count=fewer, at=at)
    return dataclasses.replace(table, residuals=slots)


def _one_missing(table: PipelineTable) -> PipelineTable:
    """Table in which device 0 never runs its last B."""
    first, *rest = table.work["B"]
    return _replaced(table, "B", (dict(list(first.items())[:-1]), *rest))


BREAKS: list[tuple[Callable[[PipelineTable], PipelineTable], str]] = [
    (_swapped, "operand arrives in tick"),
    (_shifted, "is before F"),
    (_one_device_shifted, "operand arrives in tick"),
    (_slot_less, "writes slot 0, which"),
    (_one_missing, "run never or twice"),
]


@pytest.mark.parametrize(("broken", "message"), BREAKS)
@pytest.mark.parametrize("sizes", [(2, 4, 1), (4, 8, 1), (4, 8, 2), (3, 6, 4)])
def test_broken_tables_are_found(
    sizes: tuple[int, int, int], broken: Callable[[PipelineTable], PipelineTable], message: str
) -> None:
    faults = broken(pipeline_table(PipelineSchedule(*sizes))).faults()
    assert any(message in fault for fault in faults), faults


def test_weights_before_their_cotangents_are_found() -> None:
    table = pipeline_table(PipelineSchedule(4, 8, split=True))
    works = tuple({t - 4: item for t, item in work.items()} for work in table.work["W"])
    assert any("is before B" in fault for fault in _replaced(table, "W", works).faults())


def test_entries_heads_and_exits() -> None:
    """Every microbatch enters, has its head and leaves once; without waiting for `1f1b`."""
    for s in ALL:
        table = pipeline_table(s)
        for ticks in (table.entries(), table.heads(), table.exits()):
            assert sorted(ticks.values()) == list(range(s.microbatches))
        if s.schedule == ONE_F_ONE_B:
            last = table.work["F"][-1]
            for tick, microbatch in table.heads().items():
                assert last[tick] == (s.chunks - 1, microbatch)


def test_arrays_are_the_items() -> None:
    table = pipeline_table(PipelineSchedule(3, 6, 2))
    for kind in "FB":
        chunks, microbatches = table.chunk(kind), table.microbatch(kind)
        for device in range(3):
            for tick in range(table.schedule.ticks):
                item = table.item(kind, device, tick)
                assert (chunks[device, tick], microbatches[device, tick]) == (item or (-1, -1))


def test_pairs_and_printed_indices() -> None:
    one, two = PipelineSchedule(4, 8), PipelineSchedule(4, 8, 2)
    assert one.pairs("F") == ((0, 1), (1, 2), (2, 3))
    assert one.pairs("B") == ((1, 0), (2, 1), (3, 2))
    assert two.pairs("F") == (*one.pairs("F"), (3, 0))
    assert PipelineSchedule(4, 8, split=True).pairs("W") == ()
    for s in [s for s in ALL if s.stages == 4]:
        for kind in s.kinds:
            for device in range(s.stages):
                for tick, item in pipeline_table(s).work[kind][device].items():
                    assert _read(s.index(kind), device, tick) == item


def _read(text: str, stage: int, t: int) -> tuple[int, int]:
    """Chunk and microbatch by a printed index."""
    names = {"stage": stage, "t": t, "chunk": 0}
    for part in text.split(", "):
        name, formula = part.removeprefix("%").split(" = ")
        formula = formula.replace("div", "//").replace("mod", "@").replace("@", "%")
        for known in names:
            formula = formula.replace(f"%{known}", f"({names[known]})")
        names[name] = eval(formula)
    return names["chunk"], names["mb"]


def test_picture() -> None:
    """Devices by ticks; a cut picture says so."""
    assert picture(PipelineSchedule(3, 3)).splitlines() == [
        "0 | F0 F1 | F2 .  .  .  .  B0 | B1 B2 |",
        "1 | .  F0 | F1 .  F2 B0 .  B1 | B2 .  |",
        "2 | .  .  | F0 B0 F1 B1 F2 B2 | .  .  |",
        "7 ticks, idle 40.0%",
    ]
    assert picture(PipelineSchedule(2, 2, 2), 4).splitlines() == [
        "0 | F0/0 F1/0 F0/1 | F1/1 .    ...",
        "1 | .    F0/0 F1/0 | F0/1 B0/1 ...",
        "8 ticks, idle 20.0%",
    ]


def test_spans_cover_the_time_and_leave_the_bubble() -> None:
    s = PipelineSchedule(4, 8, 2)
    costs = {"F": 1.0, "B": 2.0}
    found = spans(s, costs)
    for device in range(4):
        mine = [span for span in found if span.device == device]
        assert mine[0].start == 0
        assert mine[-1].stop == pytest.approx(s.seconds(costs))
        assert all(a.stop == b.start for a, b in itertools.pairwise(mine))
        busy = sum(span.stop - span.start for span in mine if span.item)
        assert 1 - busy / s.seconds(costs) == pytest.approx(s.idle_fraction(costs))


MISTAKES: list[tuple[dict[str, object], str]] = [
    ({"stages": 1}, r"^stages=1 of a pipeline is no integer from 2 up$"),
    ({"stages": 2.0}, r"^stages=2\.0 of a pipeline is no integer from 2 up$"),
    ({"microbatches": 0}, r"^microbatches=0 of a pipeline is no integer from 1 up$"),
    ({"chunks": True}, r"^chunks=True of a pipeline is no integer from 1 up$"),
    ({"schedule": "zb"}, r"^schedule='zb' of a pipeline is not '1f1b' or 'gpipe'$"),
    (
        {"microbatches": 6, "chunks": 2},
        r"^6 microbatches of a pipeline with 2 chunks are no multiple of its 4 stages$",
    ),
]


@pytest.mark.parametrize(("given", "message"), MISTAKES)
def test_mistakes(given: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PipelineSchedule(**{"stages": 4, "microbatches": 8, **given})  # type: ignore[arg-type]


def test_gpipe_holds_every_microbatch() -> None:
    assert PipelineSchedule(4, 16, schedule=GPIPE).in_flight() == 16
