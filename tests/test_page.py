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
from partir_search.messages.html import rows_html
from partir_search.plan.report import report_page
from partir_search.plan.report.argument_tables import argument_rows
from partir_search.plan.report.charts import (
    LEFT,
    RIGHT,
    WIDTH,
    _drawn,
    memory_chart,
    round_ticks,
    timeline_chart,
)
from partir_search.plan.report.layers import layers_of, window
from partir_search.plan.report.page import STYLE
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
    assert not re.search(
        r"""src=|href="[^#]|@import|url\((?!#)|<script""", page
    )  # needs nothing else
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


def step_of_layers(lengths: list[float]) -> Timeline:
    """A step whose layers take so many seconds in either pass, with a gather before each."""
    events, now = [], 0.0
    for backward in (False, True):
        for i in range(len(lengths))[:: -1 if backward else 1]:
            path = ("T5", f"norm_{i}"), ("T5", f"mlp_{i}", "up")
            for block in path:
                events.append(Event("data", "all_gather", now, 0.25, 0.25, ""))
                more = {"path": block, "backward": backward}
                events.append(Event("compute", "dot", now + 0.25, lengths[i] / 2, 1.0, "", **more))
                now += 0.25 + lengths[i] / 2
        events.append(Event("compute", "loss", now, 1.0, 1.0, "", path=("T5",)))
        now += 1.0
    memory = tuple((float(t), 100.0 + t) for t in range(int(now)))
    return Timeline(now, tuple(events), memory, (), 50.0)


def test_layers_are_found_by_their_numbers() -> None:
    """By pass; those of another length apart; the middle one is drawn."""
    forward, backward = layers_of(step_of_layers([4.0, 4.0, 6.0, 4.0, 4.1]))
    assert (forward.label, backward.label) == (
        "forward of T5/*_{0,1,3,4}",
        "backward of T5/*_{0,1,3,4}",
    )
    assert [x.name for x in backward.different] == ["T5/*_2"]
    assert forward.drawn.name == "T5/*_3"
    starts = [x.start for x in backward.alike]
    assert starts == sorted(starts)
    assert all(x.seconds == pytest.approx(4.25) for x in forward.alike[:3])
    assert not layers_of(step_of_layers([4.0, 4.0]))
    assert not layers_of(step_of_layers([1.0, 2.0, 4.0, 8.0]))


def test_a_window_is_a_part_of_the_step() -> None:
    whole = step_of_layers([4.0] * 3)
    cuts = [0.0, 5.5, 10.5, whole.seconds]
    parts = [window(whole, *pair) for pair in itertools.pairwise(cuts)]
    for name in ("seconds", "exposed"):
        total = sum(getattr(e, name) for e in whole.events)
        assert sum(getattr(e, name) for p in parts for e in p.events) == pytest.approx(total)
    for part, start in zip(parts, cuts, strict=False):
        assert all(0 <= e.start <= e.start + e.seconds <= part.seconds + 1e-9 for e in part.events)
        assert part.memory[0] == (0.0, 100.0 + int(start))
        assert "peak" in memory_chart(part, 1e3)


def test_a_layer_is_drawn_in_detail(plan: ps.Plan) -> None:
    """One of five in each pass, to which the bands of all five lead."""
    page = report_page(plan, step_of_layers([4.0, 4.0, 6.0, 4.0, 4.1]))
    for i, name in enumerate(("forward", "backward")):
        assert page.count(f'<a href="#layers{i}">') == page.count(f'id="layers{i}"') == 1
        assert f"<summary>{name} of T5/*_{{0,1,3,4}} (x4): 4.25 s each</summary>" in page
    assert page.count('class="band') == 10
    assert page.count("Of another length: T5/*_2 6.25 s.") == 2


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


def test_labels_of_memory_lie_above_its_area() -> None:
    """Apart from each other, last in the picture, and with an edge in the color of the page."""
    chart = memory_chart(Timeline(1.0, (), ((0.0, 1e6), (0.9, 1.1e6)), (), 1e6), 1.15e6)
    labels = re.findall(r'<text x="[\d.]+" y="([\d.]+)"[^>]*class="over">(\w+)', chart)
    assert [name for _, name in labels] == ["limit", "peak", "arguments"]
    assert all(float(b) - float(a) >= 13 for (a, _), (b, _) in itertools.pairwise(labels))
    assert chart.index('class="over"') > max(chart.rindex('class="mark"'), chart.index("<polygon"))
    assert re.search(r"text\.over\{[^}]*stroke:var\(--back\)[^}]*paint-order:stroke", STYLE)


def test_short_events_are_merged() -> None:
    """A lane of a thousand events keeps its ends and its exposed seconds, in few shapes."""
    events = [Event("x", "all_gather", i * 1e-3, 5e-4, 2e-4, "a.py:1") for i in range(1000)]
    drawn = _drawn(events, 900 / 1.0)
    assert len(drawn) < 300
    assert drawn[0].start == 0
    assert drawn[-1].start + drawn[-1].seconds == pytest.approx(0.9995)
    assert sum(e.exposed for e in drawn) == pytest.approx(0.2)
    assert re.fullmatch(r"\d all_gather", drawn[0].kind)


def test_hidden_seconds_are_hatched() -> None:
    """A shape for the hidden part of each collective, from its start, and none of compute."""
    events = [
        Event("compute", "dot", 0.0, 10.0, 10.0, "a.py:1"),
        Event("x", "all_gather", 1.0, 4.0, 1.0, "a.py:2"),
        Event("x", "all_reduce", 6.0, 4.0, 4.0, "a.py:3"),
    ]
    chart = timeline_chart(Timeline(10.0, tuple(events), (), (), 0.0))
    (found,) = re.findall(r'<path class="hatch" d="([^"]*)"/>', chart)
    start, width = re.fullmatch(r"M([\d.]+) \d+h([\d.]+)v22h-\2z", found).groups()  # type: ignore[union-attr]
    scale = (WIDTH - LEFT - RIGHT) / 10.0
    assert float(start) == pytest.approx(LEFT + scale, abs=0.1)
    assert float(width) == pytest.approx(3.0 * scale, abs=0.1)


def test_cells_of_many_columns_name_their_column() -> None:
    head = [("kernel", False), ("a step", True), ("", False), ("by", False), ("runs", True)]
    row = ["dot", "3 ms", "<svg/>", "a & b", "4"]
    page = rows_html([row], head, raw=2)
    assert "<table class=many><thead><tr><th>kernel</th><th class=n>a step</th>" in page
    cells = '<td data-h="kernel">dot</td><td class=n data-h="a step">3 ms</td><td><svg/></td>'
    assert cells + '<td data-h="by">a &amp; b</td>' in page
    assert "data-h" not in rows_html([row[:4]], head[:4], raw=2)


@pytest.mark.parametrize("width", [1280, 400])
def test_page_opens_in_a_browser(plan: ps.Plan, tmp_path: pathlib.Path, width: int) -> None:
    """Headless Chromium lays it out: a click on a layer opens its picture, every picture has a
    size, the page is no wider than the window, no table of many columns scrolls sideways, and
    nothing is asked of a network.
    """
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        pytest.skip("no Chromium here; .ci/run installs it")
    page = report_page(plan, step_of_layers([4.0, 4.0, 6.0, 4.0, 4.1]))
    probe = """<script>window.onload=()=>{const all=n=>[...document.querySelectorAll(n)];
      all('a[href="#layers1"]')[0].dispatchEvent(new MouseEvent('click',{bubbles:true}));
      setTimeout(()=>{const opened=all('details').map(d=>+d.open).join('');
      all('details').forEach(d=>d.open=true);
      const b=all('svg:not([aria-hidden])').map(s=>s.getBoundingClientRect());
      parent.postMessage(['ok',b.length,b.filter(r=>r.width>5&&r.height>5).length,
      document.documentElement.scrollWidth,opened,all('table.many').filter(
      t=>t.parentNode.scrollWidth>t.parentNode.clientWidth).length].join(' '),'*')},200)}
      </script>"""
    (tmp_path / "page.html").write_text(page.replace("</body>", probe + "</body>"))
    # A window of Chromium is no narrower than 500 pixels; a frame is.
    outer = f"""<script>onmessage=e=>{{document.title=e.data}}</script>
      <iframe width={width} height=2000 style="border:0" src="page.html"></iframe>"""
    (tmp_path / "probed.html").write_text(outer)
    flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run"
    flags += " --disable-background-networking --disable-component-update --disable-sync"
    command = [browser, *flags.split(), f"--user-data-dir={tmp_path / 'profile'}"]
    command += ["--window-size=1400,2000", "--virtual-time-budget=3000", "--dump-dom"]
    command.append((tmp_path / "probed.html").as_uri())
    dom = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    found = re.search(r"<title>ok (\d+) (\d+) (\d+) (\d+) (\d+)</title>", dom)
    assert found, dom[:300]
    pictures, drawn, wide = map(int, found.groups()[:3])
    assert pictures == drawn == page.count("<svg") - 1  # the hatch's
    assert page.count("<table class=many>") > 4
    assert found[5] == "0"
    assert wide <= width
    assert found[4] == "01"
