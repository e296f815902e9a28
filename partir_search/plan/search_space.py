"""Space of a search: the decisions before the search, and the axes and arguments left to it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from partir_search.mcts.game import Move
from partir_search.plan.json_entries import typed_entry
from partir_search.propagation.actions import Action, action_from_json
from partir_search.simulator.cost import Cost


@dataclasses.dataclass(frozen=True, slots=True)
class Visited:
    """States of a search, with costs on the folded program.

    Attributes:
      ops: number of ops of the searched program, unfolded; recomputation of segments adds ops.
      states: cost and moves of each nondominated state, by seconds and peak bytes, fastest first.
      best: cost and moves of the best states by the goals, unlike in cost, best first.
    """

    ops: int = 0
    states: tuple[tuple[Cost, tuple[Move, ...]], ...] = ()
    best: tuple[tuple[Cost, tuple[Move, ...]], ...] = ()


NOTHING_VISITED = Visited()


@dataclasses.dataclass(frozen=True, slots=True)
class SearchSpace:
    """Space of the last automatic tactic of a schedule.

    Attributes:
      axes: mesh axes that the search may use.
      decided: actions before the search: fixed shardings and earlier tactics.
      exclude: globs of arguments excluded from moves.
    """

    axes: tuple[str, ...]
    decided: tuple[Action, ...] = ()
    exclude: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """All fields, as JSON values."""
        return {
            "axes": list(self.axes),
            "decided": [action.to_json() for action in self.decided],
            "exclude": list(self.exclude),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SearchSpace:
        """Inverse of `to_json`.

        Raises:
          KeyError or ValueError: `data` was not written by `to_json`.
        """
        decided = typed_entry(data, "decided", list, "a list of actions")
        axes, exclude = (typed_entry(data, key, list, "names") for key in ("axes", "exclude"))
        return cls(tuple(axes), tuple(map(action_from_json, decided)), tuple(exclude))
