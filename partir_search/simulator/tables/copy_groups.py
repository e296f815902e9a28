"""Lower bounds of the cost of copies shared by several uses.

Uses of one value share a copy in a layout if all need the layout. The seconds of a copy are at
least the smallest of all uses able to make the copy. Two relaxations:

- Each use pays an equal share: `1 / n` for a layout that n uses may need.
- A variable holds the value's tiling and the layout needed by most uses. The variable pays the copy
  in full, uses of the layout nothing. A further layout is needed by at most half of the uses, and
  these share the cost. With two or three uses the sum is exact.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from partir_search.exact.pairwise import ModelBuilder
from partir_search.simulator.arrays import Bools, Floats, Ints
from partir_search.simulator.tables.sums import Scope


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class CopyUse:
    """One use of a value.

    Attributes:
      other: variable of the use besides the value's tiling, or NONE.
      costs: [labels of the other variable or 1, tilings] seconds if the use makes the copy itself.
      layouts: like `costs`, number of the layout of the copy, or NONE without a copy.
    """

    other: int
    costs: Floats
    layouts: Ints

    @classmethod
    def of(cls, scope: Scope, value: int, costs: Floats, layouts: Ints) -> CopyUse:
        """The use of a table over a scope with the variable `value`."""
        if len(scope) == 1:
            return cls(-1, costs[None], layouts[None])
        if scope[0] == value:
            return cls(scope[1], costs.T, layouts.T)
        return cls(scope[0], costs, layouts)


@dataclasses.dataclass(frozen=True, eq=False)
class CopyGroup:
    """Uses of a value that may share copies.

    Attributes:
      value: variable of the value's tiling.
      uses: at least two.
      known: [layouts] numbers of the layouts.
      least: [tilings, layouts + 1] seconds of a copy at least; 0 if no use needs the layout. The
        last column is for uses without a copy.
      needing: [tilings, layouts + 1] number of uses with the layout.
    """

    value: int
    uses: Sequence[CopyUse]
    known: Ints
    least: Floats
    needing: Ints

    @classmethod
    def of(cls, value: int, uses: Sequence[CopyUse]) -> CopyGroup:
        """The group of a value's uses."""
        known = np.unique(np.concatenate([use.layouts.ravel() for use in uses]))
        known = known[known >= 0]
        tilings = uses[0].costs.shape[1]
        least = np.full((tilings, len(known) + 1), np.inf)
        needing = np.zeros((tilings, len(known) + 1), dtype=np.int64)
        for use in uses:
            at = _places(known, use.layouts)
            of_use = np.full(least.shape, np.inf)
            tiling = np.broadcast_to(np.arange(tilings), at.shape)
            np.minimum.at(of_use, (tiling, at), use.costs)
            needing += np.isfinite(of_use)
            np.minimum(least, of_use, out=least)
        least[~np.isfinite(least)] = least[:, -1] = 0.0
        return cls(value, uses, known, least, needing)

    @property
    def shared(self) -> Bools:
        """[tilings, layouts + 1] several uses may need the layout, and a copy costs something."""
        found: Bools = (self.needing > 1) & (self.least > 0.0)
        return found

    @property
    def at_stake(self) -> float:
        """Most seconds that one use would pay too little by paying an equal share."""
        lost = self.least * (1.0 - 1.0 / np.maximum(self.needing, 1))
        return float(np.max(lost, initial=0.0))

    def add_shares(self, builder: ModelBuilder) -> None:
        """Adds equal shares."""
        for use in self.uses:
            tiling, at = self._places_of(use)
            by = self.needing[tiling, at]
            costs = np.where(self.shared[tiling, at], self.least[tiling, at] / by, use.costs)
            if use.other < 0:
                builder.add((self.value,), costs[0])
            else:
                builder.add((use.other, self.value), costs)

    def joint_labels(self) -> Ints:
        """[labels, 2] tilings and places of layouts, or NONE: labels of the group's variable."""
        none = [(t, -1) for t in range(len(self.least))]
        some = np.argwhere(self.shared).tolist()
        return np.array([*none, *some], dtype=np.int64)

    def add_joint(self, builder: ModelBuilder, prohibitive: float) -> None:
        """Adds costs by way of a new variable with `joint_labels`.

        Args:
          prohibitive: cost of two different tilings of the value.
        """
        labels = self.joint_labels()
        variable = builder.new_variable(len(labels))
        tiling, chosen = labels.T
        held = np.where(chosen >= 0, self.least[tiling, chosen], 0.0)
        differs = np.arange(len(self.least))[:, None] != tiling[None, :]
        builder.add((self.value, variable), np.where(differs, prohibitive, held[None, :]))
        shared, half = self.shared, max(1, len(self.uses) // 2)
        for use in self.uses:
            own, at = self._places_of(use)
            is_shared, by = shared[own, at], np.minimum(self.needing[own, at], half)
            costs = np.where(is_shared, self.least[own, at] / by, use.costs)[:, tiling]
            costs[is_shared[:, tiling] & (at[:, tiling] == chosen)] = 0.0
            if use.other < 0:
                builder.add((variable,), costs[0])
            else:
                builder.add((use.other, variable), costs)

    def _places_of(self, use: CopyUse) -> tuple[Ints, Ints]:
        """Like the use's costs: tilings, and places of layouts."""
        at = _places(self.known, use.layouts)
        return np.broadcast_to(np.arange(at.shape[1]), at.shape), at


def _places(known: Ints, layouts: Ints) -> Ints:
    """Places among known layouts; one beyond the last for no layout."""
    found: Ints = np.where(layouts >= 0, np.searchsorted(known, layouts), len(known))
    return found
