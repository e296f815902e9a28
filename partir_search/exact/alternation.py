"""Minimisation of a model block by block: the labels of one block are chosen exactly, the rest
held; the blocks take turns until nothing changes.

The costs may depend on the labelling at hand (tables that are linear in it): they are asked for
anew before each turn, and the best labelling is told by true costs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from partir_search.exact.elimination import minimum_within
from partir_search.exact.pairwise import Ints, Labelling, PairwiseModel, whole_labelling

Blocks = Sequence[Sequence[Ints]]
"""By block and variable, a group number per label: labels of one group differ in the block alone.

With labels that are tuples over mesh axes, block a groups labels that agree on all other axes.
"""


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Alternation:
    """Labellings met by alternation.

    Attributes:
      best: the labelling of least true cost, its energy the true cost.
      met: true cost of each labelling met, the start first.
    """

    best: Labelling
    met: Sequence[Labelling]


def alternate(
    costs_at: Callable[[Ints], PairwiseModel],
    true_cost: Callable[[Ints], float],
    blocks: Blocks,
    start: Ints,
    *,
    most_entries: int = 2_000_000,
    rounds: int = 4,
) -> Alternation:
    """Minimises costs from a labelling on.

    Args:
      costs_at: model whose energy approximates the true cost near a labelling.
      true_cost: of a labelling; asked once per labelling.
      most_entries: of a table of exact elimination. Where more are needed, some variables of the
        block are held as well.
      rounds: turns of each block at most. The last labelling is never dearer than the model at it
        says, but may be dearer than an earlier one: the best of all is returned.
    """
    labels = np.array(start, dtype=np.int64)
    met = [Labelling(true_cost(labels), labels)]
    seen = {labels.tobytes()}
    unchanged = 0
    for turn in range(rounds * len(blocks)):
        model = costs_at(labels)
        found = improve(model, labels, blocks[turn % len(blocks)], most_entries)
        if np.array_equal(found.labels, labels):
            unchanged += 1
            if unchanged == len(blocks):
                break
            continue
        labels, unchanged = found.labels, 0
        if labels.tobytes() in seen:
            break  # a cycle of costs at one labelling and at another
        seen.add(labels.tobytes())
        met.append(Labelling(true_cost(labels), labels))
    return Alternation(min(met, key=lambda each: each.energy), met)


def improve(
    model: PairwiseModel, labels: Ints, block: Sequence[Ints], most_entries: int
) -> Labelling:
    """The labelling of least energy among those that differ in one block; never above `labels`."""
    kept = [np.flatnonzero(group == group[x]) for group, x in zip(block, labels, strict=True)]
    at = np.array([np.searchsorted(k, x) for k, x in zip(kept, labels, strict=True)])
    rest = model.restricted(kept)
    start = Labelling(rest.energy(at), at)
    found = minimum_within(rest, start, most_entries)
    if found.energy >= start.energy - 1e-12 * abs(start.energy):
        found = start  # of labellings that cost the same the one at hand
    return whole_labelling(found, kept)
