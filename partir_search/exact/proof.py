"""Proof of how far a labelling is from the minimum: a bound, and the labels that may still be in a
better labelling.

Labels that dead-end elimination or the bound with the label rules out are removed; with fewer
labels the bound rises, or exact elimination fits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from partir_search.exact.dead_ends import without_dead_ends
from partir_search.exact.elimination import eliminate, elimination_order
from partir_search.exact.pairwise import Ints, Labelling, PairwiseModel, whole_labelling
from partir_search.exact.tree_bound import TreeBound

ROUNDING = 1e-9  # of an upper bound, added before labels are compared with it


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Proof:
    """Bound of a model's minimum.

    Attributes:
      bound: no labelling has less energy.
      best: labelling of least energy that was met.
      exact: whether `best` is the minimum.
      kept: [n] labels left. If some labelling has no more than the upper bound, a labelling of
        least energy has these labels alone.
    """

    bound: float
    best: Labelling
    exact: bool
    kept: Sequence[Ints]


def prove(
    model: PairwiseModel,
    upper: float = np.inf,
    *,
    most_entries: int = 10_000_000,
    sweeps: int = 40,
    rounds: int = 3,
    go_on: Callable[[], bool] = lambda: True,
) -> Proof:
    """Bounds the minimum of a model.

    Args:
      upper: energy of a known labelling, or any figure above which labellings do not matter.
      most_entries: of a table of exact elimination.
      sweeps / rounds: of messages in one round, and rounds of removals.
      go_on: asked between sweeps whether time is left.
    """
    limit = upper + ROUNDING * abs(upper) if np.isfinite(upper) else np.inf
    kept, bound = without_dead_ends(model), -np.inf
    best: Labelling | None = None
    for _ in range(rounds):
        rest = model.restricted(kept)
        order = elimination_order(rest)
        if order.largest <= most_entries:
            best = whole_labelling(eliminate(rest, order), kept)
            return Proof(max(bound, min(best.energy, limit)), best, best.energy <= limit, kept)
        tree = TreeBound(rest, order.variables)
        for _ in range(sweeps):
            before = tree.value
            if tree.sweep() - before <= 1e-5 * abs(tree.value) or not go_on():
                break
        labels = tree.decoded()
        found = whole_labelling(Labelling(rest.energy(labels), labels), kept)
        if best is None or found.energy < best.energy:
            best = found
        bound = max(bound, min(tree.value, limit))
        limit = min(limit, best.energy + ROUNDING * abs(best.energy))
        left = [k[costs <= limit] for k, costs in zip(kept, tree.with_label, strict=True)]
        if not all(map(len, left)):  # nothing is below the upper bound
            return Proof(min(upper, best.energy), best, best.energy <= upper, kept)
        fewer = without_dead_ends(model, left)
        if sum(map(len, fewer)) == sum(map(len, kept)) or not go_on():
            kept = fewer
            break
        kept = fewer
    assert best is not None
    return Proof(bound, best, False, kept)
