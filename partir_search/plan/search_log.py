"""Log of a search: tree and progress as JSON, the top of the tree as a picture."""

from __future__ import annotations

import io
import json
import math
import pathlib
from typing import TYPE_CHECKING, Any

from partir_search.messages.console import new_console
from partir_search.plan.planned import SearchReport

if TYPE_CHECKING:
    from rich.tree import Tree as RichTree

MAX_DEPTH, MAX_CHILDREN = 6, 4  # of the picture


def save_search(report: SearchReport, folder: str | pathlib.Path) -> None:
    """Writes `search.json` and `search.svg` into `folder`, creating the folder if missing."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "search.json").write_text(json.dumps(search_record(report), indent=1) + "\n")
    console = new_console(record=True, width=120, file=io.StringIO())
    console.print(picture(report))
    title = f"search over {', '.join(report.axes)}"
    (folder / "search.svg").write_text(console.export_svg(title=title))


def search_record(report: SearchReport) -> dict[str, Any]:
    """JSON values of a search; objectives are in the goals' unit, seconds by default."""
    tree = report.tree
    return {
        "axes": list(report.axes),
        "proven": report.proven,
        "bound": report.bound,
        "episodes": report.episodes,
        "states": report.states,
        "known": {n: {"seconds": c.seconds, "bytes": c.peak_bytes} for n, c in report.known},
        "found": {"seconds": report.cost.seconds, "bytes": report.cost.peak_bytes},
        "history": [
            {"episode": n, "objective": s.objective, "excess": s.excess} for n, s in report.history
        ],
        "nodes": [
            {
                "visits": tree.visits[n],
                "best": _finite(tree.best[n]),
                "children": {report.moves[m]: c for m, c in tree.children[n].items()},
            }
            for n in range(len(tree))
        ],
    }


def picture(report: SearchReport) -> RichTree:
    """Tree of the most visited decisions, with visits and the best cost below each node.

    Costs are relative to the best cost of the search.
    """
    from rich.markup import escape
    from rich.tree import Tree as RichTree

    tree = report.tree
    root = RichTree(
        f"{report.states} strategies looked at"
        + (", all there are: no tree was needed" if report.proven else "")
    )
    if not len(tree):
        return root
    best = min(tree.best)

    def grow(branch: RichTree, node: int, depth: int) -> None:
        children = sorted(tree.children[node].items(), key=lambda c: -tree.visits[c[1]])
        for move, child in children[:MAX_CHILDREN]:
            slower = math.expm1(tree.best[child] - best) if tree.visits[child] else math.inf
            cost = "best" if slower < 1e-6 else f"+{slower:.1%}"
            style = "bold green" if cost == "best" else "default"
            text = f"[{style}]{escape(report.moves[move])}[/]  {cost}, {tree.visits[child]} visits"
            grown = branch.add(text)
            if depth < MAX_DEPTH:
                grow(grown, child, depth + 1)
        if len(children) > MAX_CHILDREN:
            branch.add(f"[dim]{len(children) - MAX_CHILDREN} more")

    grow(root, 0, 1)
    return root


def _finite(x: float) -> float | None:
    return x if math.isfinite(x) else None
