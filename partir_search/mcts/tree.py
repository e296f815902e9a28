"""The search tree as a struct of arrays; transpositions share a node."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any

from partir_search.mcts.game import Move

UNVISITED = -1
ROOT = 0


class Tree:
    """Nodes by state key.

    Attributes:
      visits: [N] simulations through the node.
      best: [N] lowest scalar cost seen below the node (max backup, as costs are rewards negated).
      children: [N] move to child index, in order of expansion.
    """

    def __init__(self) -> None:
        self.index: dict[Hashable, int] = {}
        self.visits: list[int] = []
        self.best: list[float] = []
        self.children: list[dict[Move, int]] = []

    def __len__(self) -> int:
        return len(self.visits)

    def node(self, key: Hashable) -> int:
        """Index of the node of a state; a new one if the state is new."""
        found = self.index.get(key, UNVISITED)
        if found == UNVISITED:
            found = self.index[key] = len(self.visits)
            self.visits.append(0)
            self.best.append(math.inf)
            self.children.append({})
        return found

    def backup(self, path: list[int], scalar: float) -> None:
        """Credits every node on the path (each once, though a transposition may repeat it)."""
        for node in dict.fromkeys(path):
            self.visits[node] += 1
            self.best[node] = min(self.best[node], scalar)

    def to_dict(self) -> list[dict[str, Any]]:
        """Plain data, for goldens and pictures."""
        return [
            {
                "visits": self.visits[n],
                "best": self.best[n],
                "children": {str(m): c for m, c in self.children[n].items()},
            }
            for n in range(len(self))
        ]
