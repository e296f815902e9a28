"""Search tree as a struct of arrays; transpositions share a node."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any

from partir_search.mcts.game import Move

UNVISITED = -1
ROOT = 0


class Tree:
    """Nodes of the N states that simulations have reached.

    Attributes:
      index: by state key, the state's node.
      visits: [N] simulations through the node.
      best: [N] lowest scalar cost below the node: max backup, as costs are negated rewards.
      children: [N] by move, the child node, in order of expansion.
    """

    def __init__(self) -> None:
        self.index: dict[Hashable, int] = {}
        self.visits: list[int] = []
        self.best: list[float] = []
        self.children: list[dict[Move, int]] = []

    def __len__(self) -> int:
        return len(self.visits)

    def node(self, key: Hashable) -> int:
        """Node of a state, added to the tree if the state is new."""
        node = self.index.get(key, UNVISITED)
        if node == UNVISITED:
            node = self.index[key] = len(self.visits)
            self.visits.append(0)
            self.best.append(math.inf)
            self.children.append({})
        return node

    def backup(self, path: list[int], scalar: float) -> None:
        """Adds a simulation of cost `scalar` to each node of a path, once per distinct node."""
        for node in dict.fromkeys(path):
            self.visits[node] += 1
            self.best[node] = min(self.best[node], scalar)

    def to_dict(self) -> list[dict[str, Any]]:
        """JSON-like form, for goldens and pictures."""
        return [
            {
                "visits": self.visits[n],
                "best": self.best[n],
                "children": {str(m): c for m, c in self.children[n].items()},
            }
            for n in range(len(self))
        ]
