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
from partir_search.exact.ragged import cells, starts_of
from partir_search.exact.terms import Subset, Terms
from partir_search.simulator.arrays import Floats, Ints
from partir_search.simulator.tables.copy_groups import CopyGroup, CopyUse
from partir_search.simulator.tables.hiding import Before
from partir_search.simulator.tables.prices import Columns
from partir_search.simulator.tables.use_arrays import UseArrays
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


def read_at(uses: UseArrays, found: Walk, labels: Ints, some: Subset, traits: XlaTraits) -> Terms:
    """Costs of moves near a labelling, exact there.

    Args:
      found: walk at the labelling.
      labels: the labelling, by all labels.
      some: labels of the terms.
    """
    owners, prices = uses.near(some)
    times = uses.times[owners]
    waiting = prices.reduced * uses.reduces[owners] + prices.moved * times
    early = prices.gathers
    if traits.async_all_gather != "since_source":
        at_once = prices.at_once & uses.argument[owners]
        at_once &= traits.async_all_gather == "arguments"
        early = np.where(at_once, prices.gathers[:1], 0.0)
        waiting += (prices.gathers.sum(axis=0) - early.sum(axis=0)) * times
    hidden = found.idle | ((found.total != 0.0) & (found.exposed == 0.0))
    hidden &= traits.defers_weight_gradients
    copied = prices.copied * times
    cost = copied + np.where(hidden[owners], 0.0, waiting)
    for seconds in early:
        cost += np.maximum(seconds - found.early[owners], 0.0) * times
    lengths = some.lengths[uses.ends]
    starts = starts_of(lengths.prod(axis=1))
    cost *= 0.5 ** _sharing(uses.group, found.copy, found.layout, prices.copies, starts)
    places = np.append(some.positions(labels), 0)[uses.ends]
    at = starts[:-1] + places[:, 0] * lengths[:, 1] + places[:, 1]
    own = found.exposed + copied[at]
    reads = found.copy >= 0
    paid = np.zeros(len(found.sharing))
    paid[found.copy[found.moves & reads]] = own[found.moves & reads]
    own[reads] = (paid / found.sharing)[found.copy[reads]]
    cost[at] = own
    return Terms(uses.ends, cost, starts)


def _sharing(group: Ints, copy: Ints, layout: Ints, copies: Ints, starts: Ints) -> Ints:
    """[entries] further uses of the group with a copy in the layout of the entry.

    Args:
      group / copy / layout: [uses] number of the group, and of the copy read and its layout.
      copies: [entries] number of the layout of the copy, or NONE.
      starts: [uses + 1] first place of the entries of each use.
    """
    members = np.flatnonzero((copy >= 0) & (group >= 0))
    order = members[np.argsort(group[members], kind="stable")]
    first = np.searchsorted(group[order], group)
    last = np.searchsorted(group[order], group, side="right")
    use, place = cells(np.where(group >= 0, last - first, 0))
    other = order[first[use] + place]
    use, other = use[use != other], other[use != other]
    pairs, place = cells(np.diff(starts)[use])
    at = starts[use[pairs]] + place
    same = copies[at] == layout[other[pairs]]
    return np.bincount(at[same], minlength=int(starts[-1]))


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
