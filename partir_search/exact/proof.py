"""Lower bounds of a pairwise model's minimum, with removal of labels.

Variables with at most two neighbours are eliminated first. Each round then removes labels with a
bound of their own above the upper bound. With fewer labels the bound rises, or exact elimination
fits in memory.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from partir_search.exact.arrays import Floats, Ints, Pair
from partir_search.exact.elimination import eliminate, elimination_order
from partir_search.exact.pairwise import Labelling, PairwiseModel, lift_labelling
from partir_search.exact.reduction import reduce
from partir_search.exact.tree_bound import TreeBound

ROUNDING = 1e-9  # tolerance of the upper bound, relative


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Proof:
    """Lower bound of a model's minimum.

    Attributes:
      bound: energy that no labelling is below.
      best: labelling of least energy found.
      exact: True if `best` is the minimum.
      kept: [n] remaining labels. If some labelling is at or below the upper bound, a labelling of
        least energy uses only `kept`.
    """

    bound: float
    best: Labelling
    exact: bool
    kept: Sequence[Ints]


def prove(
    model: PairwiseModel,
    upper: float = np.inf,
    *,
    max_entries: int = 10_000_000,
    sweeps: int = 40,
    rounds: int = 3,
    messages: Mapping[Pair, Floats] | None = None,
    budget: Callable[[PairwiseModel], Callable[[], bool]] = lambda _: lambda: True,
) -> Proof:
    """Bounds the minimum of a model.

    Args:
      upper: energy of a known labelling, or any figure above which labellings do not matter.
      max_entries: limit of a table of exact elimination.
      sweeps: maximum number of message passes in one round.
      rounds: maximum number of rounds of label removal.
      messages: first messages by sender and receiver (`TreeBound`).
      budget: given the reduced model, a function called between sweeps; False ends the proof early.
    """
    reduction = reduce(model)
    more = budget(reduction.model)
    found = _prove(reduction.model, upper, max_entries, sweeps, rounds, messages or {}, more)
    return Proof(
        found.bound, reduction.lift(found.best), found.exact, reduction.lift_kept(found.kept)
    )


def _prove(
    model: PairwiseModel,
    upper: float,
    max_entries: int,
    sweeps: int,
    rounds: int,
    messages: Mapping[Pair, Floats],
    should_continue: Callable[[], bool],
) -> Proof:
    """Bounds the minimum of a reduced model."""
    limit = upper + ROUNDING * abs(upper) if np.isfinite(upper) else np.inf
    kept, bound = model.all_labels(), -np.inf
    best: Labelling | None = None
    for _ in range(rounds):
        rest = model.restricted(kept)
        order = elimination_order(rest)
        if order.largest <= max_entries:
            best = lift_labelling(eliminate(rest, order), kept)
            return Proof(max(bound, min(best.energy, limit)), best, best.energy <= limit, kept)
        tree = TreeBound(rest, order.variables, messages)
        for _ in range(sweeps):
            before = tree.value
            if tree.sweep() - before <= 1e-5 * abs(tree.value) or not should_continue():
                break
        labels = tree.decode()
        found = lift_labelling(Labelling(rest.energy(labels), labels), kept)
        if best is None or found.energy < best.energy:
            best = found
        bound = max(bound, min(tree.value, limit))
        limit = min(limit, best.energy + ROUNDING * abs(best.energy))
        left = [k[costs <= limit] for k, costs in zip(kept, tree.label_bounds, strict=True)]
        if not all(map(len, left)):  # no labelling is below the upper bound
            return Proof(min(upper, best.energy), best, best.energy <= upper, kept)
        if sum(map(len, left)) == sum(map(len, kept)) or not should_continue():
            break
        places = [k.searchsorted(some) for k, some in zip(kept, left, strict=True)]
        messages, kept = tree.messages(places), left
    assert best is not None
    return Proof(bound, best, False, kept)
