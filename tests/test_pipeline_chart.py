"""The chart of a pipeline has a bar for every item, where and as long as it is run."""

from __future__ import annotations

import itertools
import pathlib
import re
import xml.etree.ElementTree

import pytest

from partir_search.ir.pipeline_schedule import PipelineSchedule
from partir_search.plan.report.charts import LEFT, RIGHT, WIDTH
from partir_search.plan.report.pipeline_chart import COLORS, MOST_BARS, pipeline_chart

PICTURE = pathlib.Path(__file__).parent.parent / "docs/pictures/pipeline.svg"


def _bars(chart: str) -> list[tuple[str, float, float, float]]:
    """(title, x, y, width) of every item."""
    pattern = r'<title>([^<]*)</title><rect x="([\d.]+)" y="([\d.]+)" width="([\d.]+)"'
    return [(t, float(x), float(y), float(w)) for t, x, y, w in re.findall(pattern, chart)]


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize(("m", "v"), [(8, 1), (8, 2), (5, 1)])
def test_every_item_is_a_bar(m: int, v: int, split: bool) -> None:
    schedule = PipelineSchedule(4, m, v, split=split)
    chart = pipeline_chart(schedule)
    xml.etree.ElementTree.fromstring(chart)
    bars = _bars(chart)
    assert len(bars) == 4 * schedule.items * len(schedule.kinds)
    assert len({title for title, *_ in bars}) == schedule.items * len(schedule.kinds)
    for device in range(4):
        y = sorted({y for _, _, y, _ in bars})[device]
        mine = sorted((x, w) for _, x, at, w in bars if at == y)
        assert all(a + w <= b for (a, w), (b, _) in itertools.pairwise(mine))
        busy = sum(w + 0.7 for _, w in mine) / (WIDTH - LEFT - RIGHT)
        assert 1 - busy == pytest.approx(schedule.idle_fraction(), abs=0.01)
    assert f"idle {schedule.idle_fraction():.1%}" in chart
    assert (COLORS["W"] in chart) == split


def test_seconds_and_long_schedules() -> None:
    schedule = PipelineSchedule(2, 1000)
    chart = pipeline_chart(schedule, {"F": 1e-3, "B": 2e-3})
    assert "forward of microbatch 0: 1 ms" in chart
    assert f"the first {MOST_BARS} of 2002 bars" in chart
    assert len(_bars(chart)) <= 2 * MOST_BARS
    assert chart.count("<rect") > 500


def test_picture_of_the_page() -> None:
    """docs/pictures/pipeline.svg is the chart of 4 stages, 8 microbatches and 2 chunks."""
    chart = pipeline_chart(PipelineSchedule(4, 8, 2))
    assert PICTURE.read_text() == standalone(chart)


def standalone(chart: str) -> str:
    """Picture of a file of its own."""
    head = '<svg xmlns="http://www.w3.org/2000/svg" font-family="sans-serif" font-size="13" '
    return chart.replace("<svg ", head, 1) + "\n"
