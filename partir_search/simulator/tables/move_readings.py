"""Readings of moves: linearised at a labelling, and from below.

All gathers that start early hide behind compute: at a labelling each use keeps the seconds that it
has there. From below a gather hides behind all compute that can lie between its earliest start and
its use, and a copy is shared by all uses that can share one. On targets that run deferred dots
beside collectives, the collectives of a region are exposed by at least their excess over the dots.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from partir_search.exact.pairwise import ModelBuilder
from partir_search.simulator.arrays import Floats, Ints
from partir_search.simulator.tables.copy_groups import CopyGroup, CopyUse
from partir_search.simulator.tables.hiding import HidingCompute
from partir_search.simulator.tables.prices import Columns
from partir_search.simulator.tables.uses import Use, by_group
from partir_search.simulator.tables.variables import Variables
from partir_search.simulator.tables.walk import Walk
from partir_search.simulator.target.traits import XlaTraits


def read_at(
    builder: ModelBuilder,
    uses: Sequence[Use],
    columns: Sequence[Columns],
    found: Walk,
    labels: Ints,
    traits: XlaTraits,
) -> None:
    """Adds moves as they are near a labelling, exact there.

    Args:
      columns: prices of the uses, by the labels of the builder.
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
        waiting, early = split_gathers(use, prices, at.early, traits)
        if traits.defers_weight_gradients and (at.idle or (at.total and not at.exposed)):
            waiting = 0.0 * waiting
        cost = waiting + early + prices.copied * use.table.times
        for other, layout in by_group.get(use.group, ()) if use.group >= 0 else ():
            if other is not use:
                cost = np.where(prices.copies == layout, cost / 2, cost)
        if at.copy >= 0:
            cost[place] = paid[at.copy] / found.sharing[at.copy]
        else:
            cost[place] = at.exposed + float(prices.copied[place]) * use.table.times
        builder.add(use.table.scope, cost)


def read_below(
    builder: ModelBuilder,
    uses: Sequence[Use],
    hiding: HidingCompute,
    excess: Sequence[bool],
    variables: Variables,
    traits: XlaTraits,
) -> list[CopyGroup]:
    """Adds lower bounds of the costs of moves, without moves that may share copies.

    Args:
      excess: by region, whether collectives count as exposed in full and the deferred dots as
        hidden; else collectives that dots can hide count as hidden.

    Returns:
      Groups of uses that may share copies.
    """

    def seconds(use: Use, early: Floats | float) -> Floats:
        prices = use.table.columns
        if use.optional:
            return np.zeros(prices.moved.shape)
        waiting, exposed = split_gathers(use, prices, early, traits)
        copied: Floats = exposed + prices.copied * use.table.times
        return (
            copied
            if traits.defers_weight_gradients and not excess[use.region]
            else (waiting + copied)
        )

    found: list[CopyGroup] = []
    groups = by_group(uses)
    for use in uses:
        members = groups.get(use.group, [use])
        early = hiding.before(use)
        if len(members) == 1:
            builder.add(use.table.scope, seconds(use, early))
        elif use.table.windows:  # blocks fetched for one window serve others
            longest = max(float(np.max(hiding.before(other))) for other in members)
            builder.add(use.table.scope, seconds(use, longest) / len(members))
        elif use is members[0]:
            x = variables.of_value(use.table.value)
            each = [(u.table, seconds(u, hiding.before(u))) for u in members]
            copies = [CopyUse.of(t.scope, x, c, t.columns.copies) for t, c in each]
            found.append(CopyGroup.of(x, copies))
    return found


def split_gathers(
    use: Use, prices: Columns, early: float | Floats, traits: XlaTraits
) -> tuple[Floats, Floats | float]:
    """Splits the seconds of a use's collectives by when they start.

    Args:
      early: seconds of compute behind which a gather that starts early is hidden.

    Returns:
      Seconds per step of collectives that start at the use, and the exposed seconds of gathers that
      start before.
    """
    table = use.table
    waiting: Floats = prices.reduced * table.reduces + prices.moved * table.times
    exposed: Floats | float = 0.0
    for k, seconds in enumerate(prices.gathers):
        hides = np.maximum(seconds - early, 0.0)
        if traits.async_all_gather == "since_source":
            exposed = exposed + hides * table.times
        elif traits.async_all_gather == "arguments" and use.argument and k == 0:
            exposed = exposed + np.where(prices.at_once, hides, 0.0) * table.times
            waiting += np.where(prices.at_once, 0.0, seconds) * table.times
        else:
            waiting += seconds * table.times
    return waiting, exposed
