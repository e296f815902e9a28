"""Readings of moves: linearised at a labelling, and from below.

All gathers that start early hide behind compute: at a labelling each use keeps the seconds that it
has there. From below a gather hides behind all compute that can lie between its earliest start and
its use, and a copy is shared by all uses that can share one. On targets that run deferred dots
beside collectives, the collectives of a region are exposed by at least their excess over the dots.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from partir_search.exact.pairwise import ModelBuilder
from partir_search.simulator.arrays import Floats, Ints
from partir_search.simulator.tables.copy_groups import CopyGroup, CopyUse
from partir_search.simulator.tables.hiding import Before
from partir_search.simulator.tables.prices import Columns
from partir_search.simulator.tables.uses import Use, by_group
from partir_search.simulator.tables.variables import Variables
from partir_search.simulator.tables.walk import Walk
from partir_search.simulator.target.traits import XlaTraits


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Split:
    """Seconds per step of a use, by label and by when collectives start.

    Attributes:
      waiting: of collectives that start at the use.
      early: of each gather that starts before.
      copied: to move bytes besides.
      at_use: `waiting` and `copied` together.
    """

    waiting: Floats
    early: Sequence[Floats]
    copied: Floats
    at_use: Floats

    def hidden(self, before: Before, times: float) -> Floats | None:
        """Most hidden seconds of the longest gather begun before the use; None for none.

        Args:
          before: compute to hide each gather behind.
          times: runs in a step.
        """
        if not self.early:
            return None
        longest = functools.reduce(np.maximum, self.early)
        found: Floats = np.zeros(())
        for share, most in zip(before.shares, before.most, strict=True):
            found = found + np.minimum(longest, most) * (share * times)
        return found if found.any() else None

    def least_exposed(self, before: Before, times: float) -> Floats | float:
        """Exposed seconds of gathers begun before the use, at least.

        Args:
          before / times: as of `hidden`.
        """
        found: Floats | float = 0.0
        for share, most in zip(before.shares, before.most, strict=True):
            found = found + self.exposed(most, share * times)
        return found

    def exposed(self, early: Floats | float, times: float) -> Floats | float:
        """Exposed seconds of gathers begun before the use.

        Args:
          early: seconds of compute of one run to hide each behind.
          times: runs in a step.
        """
        found: Floats | float = 0.0
        for seconds in self.early:
            found = found + np.maximum(seconds - early, 0.0) * times
        return found


class Splits:
    """Splits of uses; uses with the same prices and runs share one."""

    def __init__(self, traits: XlaTraits) -> None:
        self._start = traits.async_all_gather
        self._known: dict[Hashable, tuple[Split, Columns]] = {}

    def of(self, use: Use, prices: Columns) -> Split:
        """Split of a use by the use's prices."""
        table = use.table
        key = id(prices), table.reduces, table.times, use.argument
        found = self._known.get(key)
        if found is None:
            waiting: Floats = prices.reduced * table.reduces + prices.moved * table.times
            early: list[Floats] = []
            for k, seconds in enumerate(prices.gathers):
                if not seconds.any():
                    continue
                if self._start == "since_source":
                    early.append(seconds)
                elif self._start == "arguments" and use.argument and k == 0:
                    early.append(np.where(prices.at_once, seconds, 0.0))
                    waiting += np.where(prices.at_once, 0.0, seconds) * table.times
                else:
                    waiting += seconds * table.times
            copied = prices.copied * table.times
            found = self._known[key] = Split(waiting, early, copied, waiting + copied), prices
        return found[0]


def read_at(
    builder: ModelBuilder,
    uses: Sequence[Use],
    columns: Sequence[Columns],
    splits: Splits,
    found: Walk,
    labels: Ints,
    traits: XlaTraits,
) -> None:
    """Adds moves as they are near a labelling, exact there.

    Args:
      columns: prices of the uses, by the labels of the builder.
      splits: of the uses.
      found: walk at the labelling.
      labels: labels of the builder at the labelling.
    """
    by_group: dict[int, list[tuple[Use, int]]] = {}  # by group: uses with a copy, and its layout
    paid: dict[int, float] = {}  # by number of a copy, seconds
    each = labels.tolist()
    places = [tuple([each[x] for x in use.table.scope]) for use in uses]
    for use, prices, at, place in zip(uses, columns, found.uses, places, strict=True):
        if at.copy >= 0:
            by_group.setdefault(use.group, []).append((use, int(prices.copies[place])))
            if at.moves:
                paid[at.copy] = at.exposed + float(prices.copied[place]) * use.table.times
    for use, prices, at, place in zip(uses, columns, found.uses, places, strict=True):
        split, times = splits.of(use, prices), use.table.times
        hidden = traits.defers_weight_gradients and (at.idle or (at.total and not at.exposed))
        usual = split.copied if hidden else split.at_use
        if not split.early and at.copy < 0:
            seconds = at.exposed + float(prices.copied[place]) * times
            if use.group not in by_group and seconds == usual[place]:
                builder.add(use.table.scope, usual)
                continue
        cost = usual + split.exposed(at.early, times)
        for other, layout in by_group.get(use.group, ()) if use.group >= 0 else ():
            if other is not use:
                cost = np.where(prices.copies == layout, cost / 2, cost)
        if at.copy >= 0:
            cost[place] = paid[at.copy] / found.sharing[at.copy]
        else:
            cost[place] = at.exposed + float(prices.copied[place]) * times
        builder.add(use.table.scope, cost)


def read_below(
    builder: ModelBuilder,
    uses: Sequence[Use],
    columns: Sequence[Columns],
    splits: Splits,
    before: Sequence[Before],
    excess: Sequence[bool],
    variables: Variables,
    traits: XlaTraits,
    exposed: Mapping[int, Floats],
) -> list[CopyGroup]:
    """Adds lower bounds of the costs of moves, without moves that may share copies.

    Args:
      columns / splits: prices of the uses.
      before: [uses] most compute beside a gather.
      excess: by region, whether collectives count as exposed in full and the deferred dots as
        hidden; else collectives that dots can hide count as hidden.
      exposed: by number of a use, further seconds of gathers (`hidden_gathers.py`).

    Returns:
      Groups of uses that may share copies.
    """
    of_use = {id(use): prices for use, prices in zip(uses, columns, strict=True)}
    before_use = {id(use): early for use, early in zip(uses, before, strict=True)}
    more = {id(uses[i]): table for i, table in exposed.items()}
    known: dict[Hashable, Floats] = {}

    def seconds(use: Use, before: Before) -> Floats:
        prices, table = of_use[id(use)], use.table
        if use.optional:
            return np.zeros(prices.moved.shape)
        hidden = traits.defers_weight_gradients and not excess[use.region]
        split = splits.of(use, prices)
        if not split.early:
            return split.copied if hidden else split.at_use
        most = [(each.shape, each.tobytes()) for each in before.most]
        key = id(split), hidden, *before.shares, *most
        found = known.get(key)
        if found is None:
            exposed = split.least_exposed(before, table.times)
            found = known[key] = (split.copied if hidden else split.at_use) + exposed
        return found

    found: list[CopyGroup] = []
    groups = by_group(uses)
    for use in uses:
        members = groups.get(use.group, [use])
        early = before_use[id(use)]
        if len(members) == 1:
            builder.add(use.table.scope, seconds(use, early) + more.get(id(use), 0.0))
        elif use.table.windows:  # blocks fetched for one window serve others
            ends = [most for other in members for most in before_use[id(other)].most]
            longest = np.array(max(float(np.max(end)) for end in ends))
            builder.add(use.table.scope, seconds(use, Before([1.0], [longest])) / len(members))
        elif use is members[0]:
            x = variables.of_value(use.table.value)
            costs = [seconds(u, before_use[id(u)]) + more.get(id(u), 0.0) for u in members]
            copies = [
                CopyUse.of(u.table.scope, x, cost, of_use[id(u)].copies)
                for u, cost in zip(members, costs, strict=True)
            ]
            found.append(CopyGroup.of(x, copies))
    return found
