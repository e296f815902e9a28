"""HTML report of a plan with charts, in one file without scripts."""

from __future__ import annotations

from html import escape

from partir_search.ir.printing.blocks import print_beginning
from partir_search.messages.html import rows_html, table_html
from partir_search.messages.number_groups import number_groups
from partir_search.messages.wording import amount, duration
from partir_search.plan.facts import PlanFacts
from partir_search.plan.report import tables
from partir_search.plan.report.argument_tables import argument_rows
from partir_search.plan.report.charts import (
    Band,
    memory_chart,
    progress_chart,
    timeline_chart,
)
from partir_search.plan.report.front_chart import front_chart
from partir_search.plan.report.layers import Layers, layers_of, window
from partir_search.plan.report.pipeline_chart import pipeline_chart
from partir_search.plan.report.shards import ShardsPictures
from partir_search.plan.report.summary import headlines, summary
from partir_search.simulator.timeline import Timeline

STYLE = """
:root{color-scheme:light dark;--back:#fff;--text:#1f2937;--soft:#6b7280;--line:#e5e7eb;
--panel:#f3f4f6;--bad:#dc2626;--fill:#93b4f5;--edge:#2563eb;--grid:#e5e7eb}
@media(prefers-color-scheme:dark){:root{--back:#111827;--text:#e5e7eb;--soft:#9ca3af;--line:#374151;
--panel:#1f2937;--bad:#f87171;--fill:#1e3a8a;--edge:#60a5fa;--grid:#374151}}
body{font:15px/1.5 system-ui,sans-serif;margin:0 auto;max-width:1080px;padding:24px;
color:var(--text);background:var(--back)}
h1{font-size:24px;margin:0;overflow-wrap:break-word}h2{font-size:18px;margin:36px 0 8px}
.sub{color:var(--soft);margin:2px 0 20px}
.cards{display:flex;flex-wrap:wrap;gap:12px}
.card{border:1px solid var(--line);border-radius:8px;padding:10px 16px;min-width:120px}
.card b{display:block;font-size:20px}.card span{color:var(--soft);font-size:13px}
.bad{border-color:var(--bad)}.bad b{color:var(--bad)}
table{border-collapse:collapse;width:100%;font-size:13px}
th{text-align:left;border-bottom:2px solid var(--line);padding:4px 10px 4px 0;font-weight:600}
td{border-bottom:1px solid var(--line);padding:4px 10px 4px 0;vertical-align:middle}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.wide{overflow-x:auto}.wide>svg{min-width:720px}
svg{width:100%;height:auto}svg.shards{width:auto}
svg.shards rect{stroke:var(--back);stroke-width:.5;vector-effect:non-scaling-stroke}
svg text{font:12px system-ui,sans-serif;fill:var(--soft)}
.band{fill:var(--edge);opacity:.5}.band.even{opacity:.3}a:hover .band{opacity:.7}
svg text.on{fill:var(--text)}svg text.in{fill:#fff;font-size:11px}
svg text.over{fill:var(--text);stroke:var(--back);stroke-width:4px;paint-order:stroke}
summary{cursor:pointer;padding:4px 0}
.lane{fill:var(--panel)}.axis{stroke:var(--soft)}.grid{stroke:var(--grid)}
.mark{stroke:var(--soft);stroke-dasharray:4 3}.filled{fill:var(--fill);stroke:var(--edge)}
dl{display:grid;grid-template-columns:max-content 1fr;gap:4px 16px;margin:16px 0}
dt{color:var(--soft)}dd{margin:0}.warn{color:var(--bad);font-weight:600}
p.note{color:var(--soft);font-size:13px;margin:4px 0}
pre{background:var(--panel);border:1px solid var(--line);border-radius:8px;padding:12px;
overflow-x:auto;font-size:12px;max-height:480px}
.hatch{fill:url(#hatch);pointer-events:none}#hatch path{stroke:var(--back);stroke-width:2}
@media(max-width:600px){body{padding:12px}dl{grid-template-columns:1fr}dd{margin-bottom:8px}
table.many thead{display:none}table.many,table.many tbody{display:block}
table.many tr{display:flex;flex-wrap:wrap;align-items:center;gap:1px 14px;padding:7px 0;
border-bottom:1px solid var(--line)}
table.many td{border:0;padding:0;text-align:left;white-space:normal;overflow-wrap:anywhere}
table.many td:empty{display:none}
table.many td[data-h]::before{content:attr(data-h) " ";color:var(--soft)}
table.many td:first-child{flex-basis:100%;font-weight:600}
table.many td:first-child::before{content:none}table.many td:has(svg){flex-basis:auto}}
"""
HATCH = (
    '<svg style="position:absolute;width:0;height:0" aria-hidden="true"><pattern id="hatch"'
    ' width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<path d="M1 0v5"/></pattern></svg>'
)
IR_LINES = 400  # lines of the program on the page


def report_page(plan: PlanFacts, timeline: Timeline) -> str:
    """HTML page of a plan.

    Args:
      plan: the plan.
      timeline: timeline of the plan's program.
    """
    name, mesh = escape(plan.module.name), escape(str(plan.mesh_shape))
    sections = [
        f"<h1>{name}</h1><p class=sub>mesh&lt;{mesh}&gt;, simulated on"
        f" {escape(plan.machine.name)}; fingerprint {plan.fingerprint}</p>",
        _cards(plan),
        _answers(plan),
        _section(
            "Alternatives", table_html(tables.strategies_table(plan)) if plan.searches else ""
        ),
        _section(
            "Finalists by the compiler",
            table_html(plan.confirmed.table()) if plan.confirmed else "",
        ),
        _section("What if", table_html(tables.changes_table(plan))),
        _section("Pipeline", pipeline_chart(plan.timetable) if plan.timetable else ""),
        _step(plan, timeline),
        _section("Kernels by seconds", table_html(tables.kernels_table(plan))),
        _section("Collectives by source line", table_html(tables.collective_lines_table(plan))),
        _section("Memory of a device", memory_chart(timeline, plan.memory_limit)),
        _section("Memory at the peak", table_html(tables.peak_table(plan))),
        _section("Live at the peak", table_html(tables.live_table(plan, 15)), LIVE_NOTE),
        _section("Arguments", _arguments(plan), SHARDS_NOTE),
        _section("Communication", table_html(tables.collectives_table(plan, {}))),
        _section("Loops whose trip count depends on data", table_html(tables.loops_table(plan))),
        _section("Replicated arguments", table_html(tables.not_tiled_table(plan))),
        *_searches(plan),
        _front(plan),
        _conflicts(plan),
        _section("The program", _ir(plan)),
    ]
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{name}: plan</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head>'
        f"<body>{HATCH}{''.join(sections)}</body></html>\n"
    )


TIMELINE_NOTE = (
    "Compute above, collectives below in a lane for the mesh axes that they run along. What compute"
    " hides is faint and hatched. Hover for kind, time and source line."
)
LAYERS_NOTE = " A click on a layer opens one of its kind, drawn in detail below."
SHARDS_NOTE = (
    "Each picture is an argument, cut into its tiles; hover for the devices that hold a tile."
    " Arguments that differ in numbers only (layers) share a row. Optimizer state of a parameter's"
    " shape is listed beside the parameter."
)


LIVE_NOTE = "Besides the arguments, largest first."


def _answers(plan: PlanFacts) -> str:
    """Warnings, and the answers in words."""
    bad = "".join(f"<p class=warn>{escape(line)}</p>" for line in headlines(plan))
    words = "".join(f"<dt>{escape(q)}</dt><dd>{escape(a)}</dd>" for q, a in summary(plan)[1:])
    return f"{bad}<dl>{words}</dl>"


def _step(plan: PlanFacts, timeline: Timeline) -> str:
    """The whole step, and one layer of each kind, which opens on a click."""
    found = layers_of(timeline)
    bands = [
        Band(
            f"{group.label} (x{len(group.alike)})",
            f"layers{i}",
            tuple((x.name, x.start, x.end) for x in (*group.alike, *group.different)),
        )
        for i, group in enumerate(found)
    ]
    note = TIMELINE_NOTE + (LAYERS_NOTE if found else "")
    details = (
        _layer(group, band, timeline, plan.memory_limit)
        for group, band in zip(found, bands, strict=True)
    )
    return _section("The step", timeline_chart(timeline, bands), note) + "".join(details)


def _layer(group: Layers, band: Band, timeline: Timeline, limit: float) -> str:
    drawn = group.drawn
    part = window(timeline, drawn.start, drawn.end)
    lengths = [(layer.name, duration(layer.seconds)) for layer in group.different]
    other = "; ".join(f"{label} {seconds}" for label, _, seconds in number_groups(lengths))
    note = f"{drawn.name} from {duration(drawn.start)} on, and the memory meanwhile."
    note += f" Of another length: {other}." if other else ""
    return (
        f"<details><summary>{escape(band.name)}: {duration(drawn.seconds)} each</summary>"
        f'<p class=note id="{band.target}">{escape(note)}</p>'
        f"<div class=wide>{timeline_chart(part)}</div>"
        f"<div class=wide>{memory_chart(part, limit)}</div></details>"
    )


def _section(title: str, body: str, note: str = "") -> str:
    if not body:
        return ""
    caption = f"<p class=note>{escape(note)}</p>" if note else ""
    return f"<h2>{escape(title)}</h2>{caption}<div class=wide>{body}</div>"


def _cards(plan: PlanFacts) -> str:
    c = plan.cost
    cards = [
        (duration(c.seconds), "a step", False),
        (duration(c.collective_seconds), "of it exposed collectives", False),
        (amount(c.peak_bytes), f"peak of {amount(plan.memory_limit)}", not plan.fits),
        (amount(plan.sent_bytes), "sent by a device", False),
        (str(sum(plan.collective_counts.values())), "collectives", False),
        (f"{c.flops / 1e12:.3g}", "TFLOP on a device", False),
    ]
    if plan.bound:
        cards.append((plan.bound.nearness, plan.bound.reference, False))
    if plan.proven:
        cards.append(("proven", "no plan of the space costs less", False))
    boxes = (
        f'<div class="card{" bad" if bad else ""}"><b>{escape(b)}</b><span>{escape(s)}</span></div>'
        for b, s, bad in cards
    )
    return f"<div class=cards>{''.join(boxes)}</div>"


def _arguments(plan: PlanFacts) -> str:
    values, slots = plan.module.body.args, plan.program.body.args
    table, pictures = [], ShardsPictures(plan.mesh_shape)
    for row in argument_rows(plan):
        shape, n = values[row.positions[0]].type.shape, len(row.positions)
        layout = slots[row.positions[0]].layout
        picture = pictures.picture(shape, layout) if shape else ""
        label = f"{row.label} (x{n})" if n > 1 else row.label
        table.append((picture, label, row.type, row.tiling, row.local_shape, row.moments))
    head = ("", "argument", "type", "tiling", "local shape", "moments")
    return rows_html(table, [(t, False) for t in head], raw=0)


def _searches(plan: PlanFacts) -> list[str]:
    out = []
    for search in plan.searches:
        history = [(at, score.objective) for at, score in search.history if score.excess <= 0]
        if history and search.episodes:
            title = f"Search over {', '.join(search.axes)}"
            note = (
                f"{search.states} strategies looked at in {search.episodes} episodes; seconds of"
                " the program with equal layers folded, which differ by a few percent from those"
                " of the whole program above."
            )
            out.append(_section(title, progress_chart(history, search.episodes), note))
    return out


def _front(plan: PlanFacts) -> str:
    front = plan.known_front
    if front is None:
        note = "plan.front() before plan.save_report(...) adds the plans from fastest to smallest."
        return f"<p class=note>{escape(note)}</p>" if plan.searches else ""
    note = "Each point is a plan; hover for its figures. Points beyond the limit do not fit."
    return _section("Seconds against memory", front_chart(front) + table_html(front.table()), note)


def _conflicts(plan: PlanFacts) -> str:
    found = plan.conflicts()[:20]
    items = "".join(f"<li>{escape(c)}</li>" for c in found)
    note = "Ops at which several tilings met; what was decided first was kept."
    return _section("Conflicts", f"<ul>{items}</ul>" if found else "", note)


def _ir(plan: PlanFacts) -> str:
    lines = print_beginning(plan.partition, IR_LINES)
    return f"<pre>{escape(chr(10).join(lines))}</pre>"
