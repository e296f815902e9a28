"""The HTML report and the timeline behind it; the command line that writes it."""

from __future__ import annotations

import html.parser
import itertools
import pathlib
import re
import shutil
import subprocess
from typing import Any

import pytest
from jax.sharding import AbstractMesh

import partir_search as ps
from models.catalog import MODELS
from partir_search.plan.report.argument_tables import argument_rows
from partir_search.plan.report.charts import _drawn, memory_chart, round_ticks
from partir_search.plan.report.shards import ShardsPictures
from partir_search.simulator.timeline import Event, Timeline

MESH = AbstractMesh((2, 4), ("batch", "model"))


def plan_of(name: str, batch: int = 8, **kw: Any) -> ps.Plan:
    entry = MODELS[name]
    options = {"machine": "tpu_v5e", "donate_argnums": 0, "episodes": 40, **kw}
    return ps.auto_partition(MESH, **options)(entry.step).plan(*entry.abstract_args(batch))


@pytest.fixture(scope="module")
def plan() -> ps.Plan:
    found = plan_of("transformer-tiny", batch=256)
    assert found.collectives  # a few examples would not be worth tiling
    return found


@pytest.mark.parametrize(
    ("name", "schedule"),
    [
        ("llama-tiny", None),
        ("gpt-scan-tiny", "BP(batch)+MP(model)"),
        ("moe-tiny", "BP(batch+model)"),
    ],
)
def test_timeline_adds_up(name: str, schedule: str | None) -> None:
    """It ends when the simulated step does; what no compute hides is the cost's; the curve peaks at
    the cost's peak, with the values that make it up.
    """
    entry = MODELS[name]
    plan = plan_of(name)
    if schedule:
        plan = ps.known_strategies(entry.step, MESH, *entry.abstract_args(8), machine="tpu_v5e")[
            schedule
        ]
    found = plan.timeline
    ends = [e.start + e.seconds for e in found.events]
    assert max(ends) == pytest.approx(plan.cost.seconds, rel=1e-6)
    exposed = sum(e.exposed for e in found.events if e.lane != "compute")
    assert exposed == pytest.approx(plan.cost.collective_seconds, rel=1e-6, abs=1e-12)
    compute = sum(e.seconds for e in found.events if e.lane == "compute")
    assert compute == pytest.approx(plan.cost.compute_seconds, rel=1e-6)
    assert max(b for _, b in found.memory) == pytest.approx(plan.cost.peak_bytes)
    if name == "llama-tiny":  # no scan, at whose peak inner values are live
        made_up = found.argument_bytes + sum(v.bytes for v in found.live)
        assert made_up == pytest.approx(plan.cost.peak_bytes, rel=0.01)
    assert all(e.exposed <= e.seconds * (1 + 1e-9) for e in found.events)
    kinds = {e.kind for e in found.events if e.lane != "compute"}
    assert kinds == {c.kind for c in plan.collectives}


class _Tags(html.parser.HTMLParser):
    """Complains where tags do not nest."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag not in ("meta", "rect", "line", "polygon", "polyline"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("rect", "line", "polygon", "polyline"):
            assert self.open.pop() == tag


def test_page_says_what_the_plan_is(plan: ps.Plan, tmp_path: pathlib.Path) -> None:
    plan.save_report(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    tags = _Tags()
    tags.feed(page)
    assert not tags.open
    assert not re.search(r"""src=|href="[^#]|@import|url\(|<script""", page)  # needs nothing else
    text = re.sub(r"<[^>]+>", " ", page)
    for title in (
        "The step",
        "Memory of a device",
        "Live at the peak",
        "Arguments",
        "Communication",
    ):
        assert title in text
    assert "Alternatives" in text
    assert "Search over batch, model" in text
    for row in argument_rows(plan):
        assert row.label in text
    for collective in plan.collectives[:3]:
        assert collective.source.split(" ")[0] in text


def test_ticks_are_round_numbers() -> None:
    assert round_ticks(1.17) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert round_ticks(94.4e9, 4) == pytest.approx([0, 50e9])
    assert round_ticks(100.0, 4) == pytest.approx([0, 50, 100])
    assert round_ticks(0.0) == [0.0]


def test_tiles_are_all_drawn_or_counted() -> None:
    """Equal tilings share one drawing."""
    mesh = ps.MeshShape(("x", "y"), (128, 2))
    pictures = ShardsPictures(mesh)
    first = pictures.picture((256, 64), ((0,), (1,)))
    assert first.count("<rect") == 64 * 2
    assert "128 of 256 tiles" in first
    assert "tile 63, 1: devices 127" in first
    again = pictures.picture((512, 8), ((0,), (1,)))
    assert "<rect" not in again
    assert 'href="#tiles0"' in again
    assert "of" not in pictures.picture((8, 64), ((), (1,))).rpartition("</svg>")[2]


def test_memory_is_a_staircase() -> None:
    """Live bytes change at instants: no edge is slanted, with several changes at a pixel too."""
    steps = [(0.0, 1e6), (0.1, 4e6), (0.1001, 2e6), (0.5, 3e6), (0.9, 1e6)]
    chart = memory_chart(Timeline(1.0, (), tuple(steps), (), 1e6), 1e9)
    found = re.search(r'polygon points="([^"]+)"', chart)
    assert found
    points = [tuple(map(float, p.split(","))) for p in found[1].split()]
    assert all(x1 == x2 or y1 == y2 for (x1, y1), (x2, y2) in itertools.pairwise(points))
    assert min(y for _, y in points) < sorted({y for _, y in points})[1]


def test_short_events_are_merged() -> None:
    """A lane of a thousand events keeps its ends and its exposed seconds, in few shapes."""
    events = [Event("x", "all_gather", i * 1e-3, 5e-4, 2e-4, "a.py:1") for i in range(1000)]
    drawn = _drawn(events, 900 / 1.0)
    assert len(drawn) < 300
    assert drawn[0].start == 0
    assert drawn[-1].start + drawn[-1].seconds == pytest.approx(0.9995)
    assert sum(e.exposed for e in drawn) == pytest.approx(0.2)
    assert re.fullmatch(r"\d all_gather", drawn[0].kind)


def test_page_opens_in_a_browser(plan: ps.Plan, tmp_path: pathlib.Path) -> None:
    """Headless Chromium lays it out: every picture has a size, nothing is asked of a network."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        pytest.skip("no Chromium here; .ci/run installs it")
    plan.save_report(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    probe = """<script>window.onload=()=>{const b=[...document.querySelectorAll('svg')].map(
      s=>s.getBoundingClientRect());document.title='ok '+b.length+' '+b.filter(
      r=>r.width>5&&r.height>5).length+' '+document.body.scrollWidth}</script>"""
    (tmp_path / "probed.html").write_text(page.replace("</body>", probe + "</body>"))
    flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run"
    flags += " --disable-background-networking --disable-component-update --disable-sync"
    command = [browser, *flags.split(), f"--user-data-dir={tmp_path / 'profile'}"]
    command += ["--window-size=1140,2000", "--dump-dom", (tmp_path / "probed.html").as_uri()]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    found = re.search(r"<title>ok (\d+) (\d+) (\d+)</title>", dom)
    assert found
    pictures, drawn, width = map(int, found.groups())
    assert pictures == drawn == page.count("<svg")
    assert width <= 1140
