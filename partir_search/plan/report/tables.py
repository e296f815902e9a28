"""Tables of a plan, and the progress bar of a search."""

from __future__ import annotations

import contextlib
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from partir_search.ir.trip_counts import Trips, data_loops
from partir_search.mcts.game import Record
from partir_search.messages.console import grouped, new_console, new_table
from partir_search.messages.renamed import warn_renamed
from partir_search.messages.wording import amount
from partir_search.plan.facts import PlanFacts

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table


@contextlib.contextmanager
def search_progress(
    wanted: bool | Callable[[Record], None] | None, episodes: int
) -> Iterator[Callable[[Record], None] | None]:
    """A progress callback for a search: the user's own, a bar on stderr, or None."""
    if callable(wanted):
        yield wanted
        return
    if wanted is None:
        wanted = sys.stderr.isatty()
    if not wanted:
        yield None
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
    )

    columns = (
        TextColumn("[bold]search"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[best]}"),
    )
    with Progress(*columns, console=new_console(stderr=True)) as bar:
        task = bar.add_task("search", total=episodes, best="")

        def show(record: Record) -> None:
            if record.episodes % 10 == 0 or record.exhausted:
                best = record.best.score
                text = f"best {best.objective * 1e3:.3f} ms, {record.episodes} states"
                if best.excess > 0:
                    text += " (does not fit yet)"
                bar.update(task, completed=min(record.episodes, episodes), best=text)

        yield show


def plan_tables(plan: PlanFacts) -> Group:
    """Tables printed by `Plan.report`."""
    tables = [figures_table(plan), arguments_table(plan)]
    tables += [strategies_table(plan)] if plan.searches else []
    tables += [collectives_table(plan, {}), collective_lines_table(plan)]
    tables += [loops_table(plan), not_tiled_table(plan)]
    return grouped(*(t for t in tables if t.row_count))


def figures_table(plan: PlanFacts) -> Table:
    """Cost per step on one device."""
    c = plan.cost
    table = new_table(title=f"{plan.module.name} on mesh<{plan.mesh_shape}>, {plan.machine.name}")
    table.title_justify = "left"
    table.add_column("")
    table.add_column("simulated", justify="right")
    table.add_row("milliseconds", f"{c.seconds * 1e3:.3f}")
    if plan.bound:
        near = "optimal" if plan.bound.optimal else f"within {plan.bound.percent}"
        table.add_row("lower bound of all plans", f"{plan.bound.seconds * 1e3:.3f}: {near}")
    table.add_row("of them exposed collectives", f"{c.collective_seconds * 1e3:.3f}")
    limit = f" of {amount(plan.memory_limit)}" if math.isfinite(plan.memory_limit) else ""
    table.add_row("peak memory", f"{amount(c.peak_bytes)}{limit}")
    table.add_row("arguments", amount(c.argument_bytes))
    table.add_row("TFLOP", f"{c.flops / 1e12:.3f}")
    if plan.remat:
        table.add_row("stretches computed again", str(len(plan.remat)))
    for stack in plan.stacks:
        count = f"{len(stack.values)} in a stack of {stack.size}"
        table.add_row(f"equal programs, the first of {stack.values[0]}", count)
    if plan.microbatches > 1:
        table.add_row("microbatches", str(plan.microbatches))
    if plan.bound:
        table.caption = str(plan.bound)
    if plan.basis:
        table.caption = plan.basis.describe(c.seconds)
    if plan.proven:
        table.caption = "every choice was enumerated: no plan of the space costs less"
    return table


def collective_lines_table(plan: PlanFacts, rows: int = 15) -> Table:
    """Bytes of collectives by kind, axes and the user's source line, largest first."""
    table = new_table(title="collectives by source line", title_justify="left")
    for column in ("kind", "axes", "where"):
        table.add_column(column)
    for column in ("a step", "bytes on a device"):
        table.add_column(column, justify="right")
    count: dict[tuple[str, str, str], int] = {}
    volume: dict[tuple[str, str, str], float] = {}
    for c in plan.collectives:
        key = (c.kind, ", ".join(c.axes), c.source or c.op)
        count[key] = count.get(key, 0) + c.times
        volume[key] = volume.get(key, 0.0) + c.bytes * c.times
    ranked = sorted(volume, key=lambda k: -volume[k])
    for key in ranked[:rows]:
        table.add_row(*key, str(count[key]), f"{volume[key]:,.0f}")
    if len(ranked) > rows:
        table.caption = f"and {len(ranked) - rows} lines more"
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
        table.add_row(name, source, f"{trips.count:,}", f"{runs:,}", why)
    return table


def not_tiled_table(plan: PlanFacts) -> Table:
    """Replicated arguments (scalars excepted), with the reason."""
    table = new_table(title="replicated arguments", title_justify="left")
    for column in ("argument", "type", "why"):
        table.add_column(column)
    rows: dict[tuple[str, str, str], int] = {}
    for path, value, spec in plan.arguments():
        if value.type.shape and not any(spec):
            key = (re.sub(r"\d+", "#", path), str(value.type), plan.why_replicated(value))
            rows[key] = rows.get(key, 0) + 1
    for (path, kind, why), n in rows.items():
        table.add_row(f"{path} (x{n})" if n > 1 else path, kind, why)
    return table


def arguments_table(plan: PlanFacts) -> Table:
    """Arguments with their tilings; arguments that differ only in digits (layers) share a row."""
    padded = [f"dim {p.dim} of {p.value} to {p.size}" for p in plan.padding]
    table = new_table(
        title=f"arguments on mesh<{plan.mesh_shape}>",
        title_justify="left",
        caption=f"padded inside of the program: {', '.join(padded)}" if padded else None,
        caption_justify="left",
    )
    for column in ("argument", "type", "tiling", "local shape"):
        table.add_column(column)
    rows: dict[tuple[str, str, str, str], int] = {}
    for (path, value, spec), slot in zip(plan.arguments(), plan.program.body.args, strict=True):
        name = re.sub(r"\d+", "#", path)
        key = (name, str(value.type), str(spec), str(list(slot.shape)))
        rows[key] = rows.get(key, 0) + 1
    for (name, kind, tiling, local), n in rows.items():
        table.add_row(f"{name} (x{n})" if n > 1 else name, kind, tiling, local)
    return table


def collectives_table(plan: PlanFacts, found: Mapping[str, Mapping[str, int]]) -> Table:
    """Predicted collectives beside compiled ones, by kind.

    Args:
      plan: the plan.
      found: counts by kind, by column title.
    """
    table = new_table(
        title="collectives",
        title_justify="left",
        caption=f"a device sends {plan.sent_bytes:,.0f} bytes; if no block of an operand lay on two"
        f" devices, products alone would need {plan.bound_bytes:,.0f} (arXiv 2205.13407)",
        caption_justify="left",
    )
    table.add_column("kind")
    for column in ("predicted", *found, "bytes on a device"):
        table.add_column(column, justify="right")
    volume: dict[str, float] = {}
    for c in plan.collectives:
        volume[c.kind] = volume.get(c.kind, 0.0) + c.bytes * c.times
    for kind, n in plan.collective_counts.items():
        counts = [str(f[kind]) for f in found.values()]
        table.add_row(kind, str(n), *counts, f"{volume.get(kind, 0.0):,.0f}")
    return table


def memory_table(plan: PlanFacts, analysis: Any, caption: str | None = None) -> Table:
    """Predicted memory beside XLA's `memory_analysis()` of the compiled program."""
    table = new_table(
        title="memory on a device (bytes)",
        title_justify="left",
        caption=caption,
        caption_justify="left",
    )
    table.add_column("")
    table.add_column("predicted", justify="right")
    table.add_column("XLA", justify="right")
    table.add_row(
        "arguments",
        f"{plan.cost.argument_bytes:,.0f}",
        f"{analysis.argument_size_in_bytes:,}",
    )
    resident = analysis.argument_size_in_bytes + analysis.output_size_in_bytes
    total = resident - analysis.alias_size_in_bytes + analysis.temp_size_in_bytes
    table.add_row("peak", f"{plan.cost.peak_bytes:,.0f}", f"{total:,}")
    return table


def strategies_table(plan: PlanFacts) -> Table:
    """Known strategies compared by a search, and the search's answer."""
    table = new_table(title=f"strategies, simulated on {plan.machine.name}", title_justify="left")
    table.add_column("strategy")
    table.add_column("ms", justify="right")
    table.add_column("peak", justify="right")
    for report in plan.searches:
        ranked = sorted(report.known, key=lambda e: e[1].seconds)
        for name, cost in ranked[:6]:
            table.add_row(name, f"{cost.seconds * 1e3:.3f}", amount(cost.peak_bytes))
        name = "chosen (proven best)" if report.proven else "chosen"
        c = report.cost
        table.add_row(f"[bold]{name}", f"{c.seconds * 1e3:.3f}", amount(c.peak_bytes))
    return table


def experts_table(plan: PlanFacts) -> Table:
    """Deprecated name of `strategies_table`."""
    warn_renamed("report.experts_table", "strategies_table")
    return strategies_table(plan)
