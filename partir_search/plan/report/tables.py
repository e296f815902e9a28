"""Text of a plan's report: answers in words, then tables."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from partir_search.ir.trip_counts import Trips, data_loops
from partir_search.messages.console import grouped, new_table
from partir_search.messages.renamed import warn_renamed
from partir_search.messages.wording import amount, milliseconds
from partir_search.plan.facts import PlanFacts
from partir_search.plan.report.argument_tables import arguments_table, not_tiled_table
from partir_search.plan.report.cells import Source
from partir_search.plan.report.cost_tables import (
    changes_table,
    collective_lines_table,
    collectives_table,
    kernels_table,
    live_table,
    memory_table,
    peak_table,
    strategies_table,
)
from partir_search.plan.report.summary import headlines, summary

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

__all__ = [
    "arguments_table",
    "changes_table",
    "collective_lines_table",
    "collectives_table",
    "experts_table",
    "figures_table",
    "kernels_table",
    "live_table",
    "loops_table",
    "memory_table",
    "not_tiled_table",
    "peak_table",
    "plan_tables",
    "strategies_table",
    "summary_text",
]


def plan_tables(plan: PlanFacts) -> Group:
    """Text and tables printed by `Plan.report`."""
    tables = [
        *([strategies_table(plan)] if plan.searches else []),
        *([plan.confirmed.table()] if plan.confirmed else []),
        *([plan.known_front.table()] if plan.known_front else []),
        *(changes_table(plan), arguments_table(plan), kernels_table(plan)),
        *(collective_lines_table(plan), collectives_table(plan, {})),
        *(peak_table(plan), live_table(plan), loops_table(plan), not_tiled_table(plan)),
    ]
    shown = [part for table in tables if table.row_count for part in ("", table)]
    return grouped(summary_text(plan), *shown[1:])


def summary_text(plan: PlanFacts) -> Text:
    """Warnings, and answers in words."""
    from rich.text import Text

    text = Text(f"{plan.module.name} on mesh<{plan.mesh_shape.user}>\n", style="bold")
    for line in headlines(plan):
        text.append(f"! {line}\n", style="bold red")
    for question, answer in summary(plan):
        text.append(f"{question}: ", style="bold")
        text.append(f"{answer}\n", style="not bold")
    return text


def figures_table(plan: PlanFacts) -> Table:
    """Cost per step on one device."""
    c = plan.cost
    table = new_table(title=f"{plan.module.name} on mesh<{plan.mesh_shape}>, {plan.machine.name}")
    table.title_justify = table.caption_justify = "left"
    table.add_column("")
    table.add_column("simulated", justify="right")
    table.add_row("a step", milliseconds(c.seconds))
    if plan.bound:
        bound = f"{milliseconds(plan.bound.seconds)}: {plan.bound.nearness}"
        table.add_row("lower bound of all plans", bound)
    table.add_row("of it exposed collectives", milliseconds(c.collective_seconds))
    limit = f" of {amount(plan.memory_limit)}" if math.isfinite(plan.memory_limit) else ""
    table.add_row("peak memory", f"{amount(c.peak_bytes)}{limit}")
    table.add_row("arguments", amount(c.argument_bytes))
    table.add_row("TFLOP", f"{c.flops / 1e12:.3f}")
    if plan.remat:
        stored = f", {plan.stored_results} results stored" if plan.stored_results else ""
        table.add_row("segments computed again", f"{len(plan.remat)}{stored}")
    for stack in plan.stacks:
        count = f"{len(stack.values)} in a stack of {stack.size}"
        table.add_row(f"equal programs, the first of {stack.values[0]}", count)
    if plan.pipeline and plan.timetable:
        idle = f"{plan.pipeline}, idle {plan.timetable.idle_fraction():.1%}"
        table.add_row("pipeline", idle)
    if plan.microbatches > 1:
        table.add_row("microbatches", str(plan.microbatches))
    if plan.parallel_iterations > 1:
        table.add_row("iterations of scans", f"in up to {plan.parallel_iterations} parts")
    if plan.scan_layers:
        table.add_row("layers", "scanned")
    if plan.bound:
        table.caption = str(plan.bound)
    if plan.basis:
        table.caption = plan.basis.describe(c.seconds)
    if plan.proven:
        table.caption = "every choice was enumerated: no plan of the space costs less"
    return table


def loops_table(plan: PlanFacts) -> Table:
    """Loops with data-dependent trip counts, and the counts assumed by the simulator."""
    table = new_table(
        title="loops whose trip count depends on data",
        title_justify="left",
        caption="auto_partition(trip_counts={'*file.py:41*': 12}) says how often a loop runs,"
        " by a glob on where or loop",
        caption_justify="left",
    )
    for column in ("loop", "where"):
        table.add_column(column)
    for column in ("trips", "in all"):
        table.add_column(column, justify="right")
    table.add_column("why")
    rows: dict[tuple[str, Trips, int], list[str]] = {}
    for loop in data_loops(plan.module):
        rows.setdefault((loop.source, loop.trips, loop.runs), []).append(loop.name)
    for (source, trips, runs), names in rows.items():
        name = f"{names[0]} (x{len(names)})" if len(names) > 1 else names[0]
        why = "trip_counts" if trips.said == "user" else "assumed"
        if trips.most is not None:
            why += f"; the program allows {trips.most:,}"
        table.add_row(name, Source(source), f"{trips.count:,}", f"{runs:,}", why)
    return table


def experts_table(plan: PlanFacts) -> Table:
    """Deprecated name of `strategies_table`."""
    warn_renamed("report.experts_table", "strategies_table")
    return strategies_table(plan)
