"""Minimisation of a pairwise model by block coordinate descent.

Each turn chooses the labels of one block exactly, with all further choices fixed; blocks take turns
until no label changes. Costs may depend on the current labelling: the caller builds the model anew
for each turn, and the best labelling is the one of least true cost.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np

from partir_search.exact.arrays import Ints
from partir_search.exact.elimination import minimum_within
from partir_search.exact.pairwise import Labelling, PairwiseModel, lift_labelling
from partir_search.exact.terms import Subset

Blocks = Sequence[Sequence[Ints]]
"""By block and variable, a group number per label; one turn chooses within the current groups.

For labels that are tuples over mesh axes, block `a` groups labels equal on all axes but `a`.
"""


Turns = dict[tuple[int, bytes], Ints]
"""Labelling after a turn, by number of the block and content of the labelling before."""


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Alternation:
    """Labellings visited by alternation, with true costs as energies.

    Attributes:
      best: labelling of least true cost.
      visited: labellings in order, the start first.
    """

    best: Labelling
    visited: Sequence[Labelling]


def alternate(
    costs_at: Callable[[Ints, Sequence[Ints]], PairwiseModel],
    true_cost: Callable[[Ints], float],
    blocks: Blocks,
    start: Ints,
    *,
    max_entries: int = 2_000_000,
    rounds: int = 4,
    first: int = 0,
    least_gain: float = 0.0,
    beat: float = math.inf,
    choices: Choices | None = None,
    realised: Callable[[Ints], Ints] | None = None,
    turns: Turns | None = None,
) -> Alternation:
    """Minimises costs, beginning at a labelling.

    The true cost may rise from one turn to the next, as the model is approximate; `best` is the
    minimum of all turns.

    Args:
      costs_at: function from a labelling and the labels that each variable may choose, the
        labelling's among them, to a model of these labels. The energy approximates the true cost
        near the labelling.
      true_cost: cost of a labelling; called once per labelling.
      blocks: groups of labels, by block and variable.
      start: [variables] initial labels.
      max_entries: limit of a table of exact elimination. Beyond the limit, some variables of the
        block are fixed as well.
      rounds: maximum number of turns of each block.
      first: number of the block with the first turn; the others follow in order.
      least_gain: end after one turn of each block without a true cost lower by more.
      beat: true cost of a known labelling; after two turns of each block, ends where the turns left
        do not lead below at the gain of the latest turns, one of each block.
      choices: arrays of labels of earlier calls.
      realised: function from a labelling to the labelling of equal true cost at which `costs_at` is
        exact; the same by default.
      turns: results of the turns of earlier calls with the same models and blocks.
    """
    realised = realised or (lambda labels: labels)
    labels = realised(np.array(start, dtype=np.int64))
    visited = [Labelling(true_cost(labels), labels)]
    seen = {labels.tobytes()}
    best, stale, unchanged = visited[0].energy, 0, 0
    choices, turns = choices or Choices(), {} if turns is None else turns
    for turn in range(rounds * len(blocks)):
        number = (first + turn) % len(blocks)
        after = turns.get((number, labels.tobytes()))
        if after is None:
            kept = choices(blocks[number], labels)
            found = improve(costs_at(labels, kept), labels, kept, max_entries)
            after = realised(found.labels)
            turns[number, labels.tobytes()] = after
        if np.array_equal(after, labels):
            unchanged += 1
            if unchanged == len(blocks):
                break
            continue
        labels, unchanged = after, 0
        if labels.tobytes() in seen:
            break  # a cycle: each model prefers the next labelling
        seen.add(labels.tobytes())
        visited.append(Labelling(true_cost(labels), labels))
        stale = stale + 1 if visited[-1].energy >= best - least_gain else 0
        best = min(best, visited[-1].energy)
        if stale == len(blocks):
            break
        if len(visited) > 2 * len(blocks):
            gain = visited[-1 - len(blocks)].energy - visited[-1].energy
            left = (rounds * len(blocks) - turn - 1) / len(blocks)
            if visited[-1].energy - max(gain, 0.0) * left > beat:
                break
    return Alternation(min(visited, key=lambda each: each.energy), visited)


class Choices:
    """Labels within the current groups of a block: equal ones are the same array."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], tuple[Ints, Ints]] = {}

    def __call__(self, block: Sequence[Ints], labels: Ints) -> list[Ints]:
        """[variables] labels that may take the place of `labels`."""
        return [self._of(group, x) for group, x in zip(block, labels.tolist(), strict=True)]

    def _of(self, group: Ints, label: int) -> Ints:
        number = int(group[label])
        found = self._known.get((id(group), number))
        if found is None:
            found = self._known[id(group), number] = np.flatnonzero(group == number), group
        return found[0]


class Either:
    """Labels of two labellings: equal ones are the same array, for any variable."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], Ints] = {}

    def __call__(self, one: Ints, other: Ints) -> list[Ints]:
        """[variables] the labels of both, in ascending order."""
        return [self._of(a, b) for a, b in zip(one.tolist(), other.tolist(), strict=True)]

    def _of(self, a: int, b: int) -> Ints:
        found = self._known.get((a, b))
        if found is None:
            both = np.array(sorted({a, b}), dtype=np.int64)
            found = self._known[a, b] = self._known.setdefault((b, a), both)
        return found


def improve(
    model: PairwiseModel, labels: Ints, kept: Sequence[Ints], max_entries: int
) -> Labelling:
    """Labelling of least energy by a model of the labels `kept`; `labels` if none is better."""
    at = Subset.of(kept).positions(labels)
    start = Labelling(model.energy(at), at)
    found = minimum_within(model, start, max_entries)
    if found.energy >= start.energy - 1e-12 * abs(start.energy):
        found = start  # ties keep the current labelling
    return lift_labelling(found, kept)
