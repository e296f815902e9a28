"""A plan as the output of a notebook's cell."""

from __future__ import annotations

from html import escape

from partir_search.messages.html import notebook_html, table_html
from partir_search.plan.facts import PlanFacts
from partir_search.plan.report import tables
from partir_search.plan.report.summary import headlines, summary


def plan_html(plan: PlanFacts) -> str:
    """HTML with the answers in words and the arguments; further tables are folded."""
    mesh = f"mesh&lt;{escape(str(plan.mesh_shape.user))}&gt;"
    bad = "".join(f"<p class=bad>{escape(line)}</p>" for line in headlines(plan))
    words = [[question, answer] for question, answer in summary(plan)]
    answers = "".join(f"<tr><th>{escape(q)}</th><td>{escape(a)}</td></tr>" for q, a in words)
    folded = [
        *([tables.strategies_table(plan)] if plan.searches else []),
        *(tables.changes_table(plan), tables.kernels_table(plan)),
        *(tables.collective_lines_table(plan), tables.peak_table(plan)),
        *(tables.loops_table(plan), tables.not_tiled_table(plan)),
    ]
    return notebook_html(
        f"<b>{escape(plan.module.name)}</b> on {mesh}{bad}<table><tbody>{answers}</tbody></table>"
        f"<div class=scroll>{table_html(tables.arguments_table(plan), titled=True)}</div>"
        + "".join(
            f"<details><summary>{escape(str(table.title))}</summary>"
            f"<div class=scroll>{table_html(table)}</div></details>"
            for table in folded
            if table.row_count
        )
    )
