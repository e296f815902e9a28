"""Actions: the decisions of a plan. Each can apply, print and serialize itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from partir_search.propagation.actions.action import Action
from partir_search.propagation.actions.ends import End, Enter, Leave
from partir_search.propagation.actions.loops import FixLoop
from partir_search.propagation.actions.modes import (
    AxisOrder,
    KeepGathered,
    Mode,
    RingSchedule,
    WindowedEinsum,
)
from partir_search.propagation.actions.tilings import Close, Replicate, Tile, Tiling

__all__ = [
    "Action",
    "AxisOrder",
    "Close",
    "End",
    "Enter",
    "FixLoop",
    "KeepGathered",
    "Leave",
    "Mode",
    "Replicate",
    "RingSchedule",
    "Tile",
    "Tiling",
    "WindowedEinsum",
    "action_from_json",
    "tilings",
]

KINDS: dict[str, type[Action]] = {
    action.kind: action
    for action in (
        *(Tile, Replicate, Close, FixLoop),
        *(WindowedEinsum, KeepGathered, RingSchedule, AxisOrder),
        *(Enter, Leave),
    )
}


def action_from_json(data: dict[str, Any]) -> Action:
    """Inverse of `Action.to_json`.

    Raises:
      ValueError: `data` has the key of no action.
    """
    for kind, action in KINDS.items():
        if kind in data:
            return action.from_json(data)
    raise ValueError(f"not an action: {data!r}")


def tilings(actions: Sequence[Action]) -> list[Tiling]:
    """Actions on values, without actions on mesh axes."""
    return [a for a in actions if isinstance(a, Tiling)]
