"""Tables of a plan's cost: strategies, changes, kernels, collectives and memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from partir_search.messages.console import new_table
from partir_search.messages.wording import amount, milliseconds
from partir_search.plan.facts import PlanFacts
from partir_search.plan.legend import legend
from partir_search.plan.peak_memory import peak_memory
from partir_search.plan.report.cells import Path, Source
from partir_search.plan.step_seconds import collective_rows, kernel_rows

if TYPE_CHECKING:
    from rich.table import Table

MIN_SOURCE, MIN_VALUE = 15, 14  # characters of narrow columns
SHOWN_TERAFLOP = 1e-6  # of a kernel; fewer are left out


def strategies_table(plan: PlanFacts) -> Table:
    """Known strategies beside the plan, on the plan's form of the program."""
    found = plan.alternatives
    again = bool(plan.remat)
    treated = [
        "all costed on the whole program, as the plan is",
        *(["with its padding"] if plan.padding else []),
        *(["with its stacks"] if plan.stacks else []),
        *([f"over its {plan.microbatches} microbatches"] if plan.microbatches > 1 else []),
        *(["with its parts of iterations"] if plan.parallel_iterations > 1 else []),
        *(["with its layers as scans"] if plan.scan_layers else []),
        *(["with the least recomputation that fits: none, the plan's or all"] if again else []),
    ]
    table = new_table(
        title=f"strategies, simulated on {plan.machine.name}",
        title_justify="left",
        caption=f"{', '.join(treated)}. {legend(a.name for a in found)}",
        caption_justify="left",
    )
    table.add_column("strategy", overflow="fold")
    for column in ("a step", "against", "peak"):
        table.add_column(column, justify="right")
    table.add_column("fits")
    if again:
        table.add_column("computed again")
    rows: dict[tuple[str, ...], list[str]] = {}
    for a in found:
        ratio = a.cost.seconds / plan.cost.seconds - 1 if plan.cost.seconds else 0.0
        figures = (milliseconds(a.cost.seconds), f"{ratio:+.1%}", amount(a.cost.peak_bytes))
        row = (*figures, "yes" if a.fits else "no", *((a.recomputed,) if again else ()))
        rows.setdefault(row, []).extend((a.name, *a.alike))
    for row, alike in rows.items():
        more = f" (and {len(alike) - 1} alike)" if len(alike) > 1 else ""
        table.add_row(min(alike, key=len) + more, *row)
    name = "the plan (proven best)" if plan.proven else "the plan"
    own = (milliseconds(plan.cost.seconds), "", amount(plan.cost.peak_bytes))
    fits = "yes" if plan.fits else "no"
    table.add_row(f"[bold]{name}", *own, fits, *((f"{len(plan.remat)} segments",) if again else ()))
    return table


def changes_table(plan: PlanFacts) -> Table:
    """Changes by the user with the figures of a step after each."""
    table = new_table(
        title="what if",
        title_justify="left",
        caption="no search ran for a change: a search may find better",
        caption_justify="left",
    )
    table.add_column("change", overflow="fold")
    for column in ("a step", "per example", "peak"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("fits")
    table.add_column("by", overflow="fold")
    for c in plan.changes:
        figures = (milliseconds(c.seconds), f"{c.relative - 1:+.1%}", amount(c.peak_bytes))
        fits = "yes" if c.fits else "no"
        table.add_row(f"{c.what} ({c.how})", *figures, fits, c.plan)
    return table


def kernels_table(plan: PlanFacts, rows: int = 10) -> Table:
    """Kernels by primitive and source line, most seconds first."""
    table = new_table(title="kernels by seconds", title_justify="left", caption_justify="left")
    table.add_column("kernel", overflow="fold")
    table.add_column("where", min_width=MIN_SOURCE)
    for column in ("a step", "share", "runs", "TFLOP", "traffic"):
        table.add_column(column, justify="right")
    found = kernel_rows(plan)
    for row in found[:rows]:
        share = f"{row.seconds / plan.cost.seconds:.1%}" if plan.cost.seconds else ""
        figures = (milliseconds(row.seconds), share, f"{row.runs:,.0f}")
        teraflop = row.flops / 1e12
        work = (f"{teraflop:.3g}" if teraflop >= SHOWN_TERAFLOP else "", amount(row.bytes))
        table.add_row(row.kind, Source(row.source), *figures, *work)
    table.caption = _more(len(found) - rows, sum(r.seconds for r in found[rows:]))
    return table


def _more(count: int, seconds: float) -> str | None:
    return f"and {count} lines more of {milliseconds(seconds)}" if count > 0 else None


def collective_lines_table(plan: PlanFacts, rows: int = 15) -> Table:
    """Collectives by kind, axes and source line, most exposed seconds first."""
    table = new_table(
        title="collectives by source line",
        title_justify="left",
        caption_justify="left",
        padding=0,  # of seven columns, which leave little room for files in narrow terminals
    )
    for column in ("kind", "axes"):
        table.add_column(column, overflow="fold")
    found = collective_rows(plan)
    narrowest = max((Source(row.source).min_width for row in found[:rows]), default=0)
    table.add_column("where", min_width=max(narrowest, MIN_SOURCE))
    for column in ("exposed", "in all", "runs", "bytes"):
        table.add_column(column, justify="right")
    for row in found[:rows]:
        figures = (milliseconds(row.exposed), milliseconds(row.seconds), f"{row.runs:,}")
        table.add_row(row.kind, row.axes, Source(row.source), *figures, amount(row.bytes))
    table.caption = _more(len(found) - rows, sum(r.exposed for r in found[rows:]))
    return table


def collectives_table(plan: PlanFacts, found: Mapping[str, Mapping[str, int]]) -> Table:
    """Predicted collectives beside compiled ones, by kind; kinds without any are left out.

    Args:
      plan: the plan.
      found: counts by kind, by column title.
    """
    bound = plan.bound_bytes
    least = (
        f"; if no block of an operand lay on two devices, products alone would need"
        f" {amount(bound)} (arXiv 2205.13407)"
        if bound
        else ""
    )
    table = new_table(
        title="collectives",
        title_justify="left",
        caption=f"a device sends {amount(plan.sent_bytes)} a step{least}",
        caption_justify="left",
    )
    table.add_column("kind")
    for column in ("predicted", *found, "bytes on a device"):
        table.add_column(column, justify="right")
    volume: dict[str, float] = {}
    for c in plan.collectives:
        volume[c.kind] = volume.get(c.kind, 0.0) + c.bytes * c.times
    for kind, n in plan.collective_counts.items():
        counts = [f[kind] for f in found.values()]
        if n or any(counts):
            table.add_row(kind, str(n), *map(str, counts), f"{volume.get(kind, 0.0):,.0f}")
    return table


def peak_table(plan: PlanFacts) -> Table:
    """Memory at the peak, by role of arguments and origin of values."""
    c = plan.cost
    table = new_table(
        title=f"memory of a device at the peak, {amount(c.peak_bytes)}", title_justify="left"
    )
    table.add_column("part")
    table.add_column("bytes", justify="right")
    table.add_column("share", justify="right")
    for part, nbytes in peak_memory(plan).parts.items():
        table.add_row(part, amount(nbytes), f"{nbytes / c.peak_bytes:.0%}" if c.peak_bytes else "")
    return table


def live_table(plan: PlanFacts, rows: int = 8) -> Table:
    """Values live at the peak besides the arguments; layers share a row."""
    table = new_table(
        title="live at the peak, without arguments", title_justify="left", caption_justify="left"
    )
    table.add_column("value", min_width=MIN_VALUE)
    for column in ("type", "part"):
        table.add_column(column, overflow="fold")
    table.add_column("made at", min_width=MIN_SOURCE)
    table.add_column("bytes", justify="right", no_wrap=True)
    found = peak_memory(plan).live
    for row in found[:rows]:
        label = f"{row.label} (x{row.count})" if row.count > 1 else row.label
        table.add_row(Path(label), row.type, row.part, Source(row.source), amount(row.bytes))
    more = sum(r.bytes for r in found[rows:])
    if len(found) > rows:
        table.caption = f"and {len(found) - rows} lines more of {amount(more)}"
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
