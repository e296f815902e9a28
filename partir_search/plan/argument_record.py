"""The record of arguments in a plan file, held against what the plan's actions make."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

from jax.sharding import PartitionSpec

from partir_search.ir.core import Value
from partir_search.messages.wording import did_you_mean
from partir_search.plan.spec import PlanSpec

MAX_DIFFERENCES = 6  # listed by a message


def record_differences(
    saved: PlanSpec, arguments: Sequence[tuple[str, Value, PartitionSpec]], same_mesh: bool
) -> str:
    """Differences between a file's record of arguments and a replay, with a remedy; "" for none.

    Args:
      saved: the plan of the file.
      arguments: path, value and spec of each argument after the plan's actions.
      same_mesh: True if the plan was made for the mesh of the replay; specs are compared then only,
        as axes of further sizes may tile other dims.
    """
    made = {path: (str(value.type), spec) for path, value, spec in arguments}
    lines = list[str]()
    for path, given in saved.arguments.items():
        if path not in made:
            lines.append(f"it has {path!r}, no argument{did_you_mean(path, made)}")
            continue
        kind, spec = made[path]
        if given != kind:
            lines.append(f"{path} has type {given!r} there, the program has {kind!r}")
        text = saved.specs.get(path)
        if same_mesh and text is not None and _entries(text) != _entries(str(spec)):
            lines.append(f"{path} has spec {text!r} there, the actions make {str(spec)!r}")
    if not lines:
        return ""
    more = [f"and {len(lines) - MAX_DIFFERENCES} more"] if len(lines) > MAX_DIFFERENCES else []
    return (
        "the saved plan's 'arguments' are a record of what its actions make, and differ from that: "
        + "; ".join(lines[:MAX_DIFFERENCES] + more)
        + ". Edit 'actions', or write tactics, ps.ManualPartition({path: dim}, axis=...);"
        " load_plan(..., on_change='apply') takes the actions and warns"
    )


def _entries(text: str) -> tuple[Any, ...] | str:
    """Entries of a printed PartitionSpec without trailing None; any other text unchanged."""
    name, _, inner = text.strip().partition("(")
    if name not in ("P", "PartitionSpec") or not inner.endswith(")"):
        return text
    try:
        entries = ast.literal_eval(f"[{inner[:-1]}]")
    except (SyntaxError, ValueError):
        return text
    while entries and entries[-1] is None:
        entries.pop()
    return tuple(tuple(e) if isinstance(e, list | tuple) else e for e in entries)
