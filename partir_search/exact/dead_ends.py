"""Dead-end elimination: labels that some other label of the variable is never worse than.

Label i of u is dominated by j if `unary[i] - unary[j] + sum_v min_l (pair[i, l] - pair[j, l]) >= 0`
(Goldstein 1994). Removing it keeps some labelling of least energy.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from partir_search.exact.pairwise import Bools, Ints, PairwiseModel

MOST_DIFFERENCES = 1 << 22  # numbers of one comparison of a variable's labels with each other


def without_dead_ends(
    model: PairwiseModel, kept: Sequence[Ints] | None = None, rounds: int = 4
) -> list[Ints]:
    """[n] labels of each variable that no other label dominates.

    Args:
      kept: [n] labels left so far; all by default.
      rounds: passes over the variables next to the last removals.
    """
    left = list(kept) if kept is not None else model.all_labels()
    waiting = set(range(len(left)))
    for _ in range(rounds):
        near: set[int] = set()
        for u in sorted(waiting):
            dead = _dominated(model, left, u)
            if dead.any():
                left[u] = left[u][~dead]
                near.update((u, *(v for v, _ in model.neighbours[u])))
        waiting = near
        if not waiting:
            break
    return left


def _dominated(model: PairwiseModel, left: Sequence[Ints], u: int) -> Bools:
    """[labels left of u] whether each is dominated by one that stays."""
    own = left[u]
    n = len(own)
    widest = max((len(left[v]) for v, _ in model.neighbours[u]), default=1)
    if n == 1 or n * n * widest > MOST_DIFFERENCES:
        return np.zeros(n, dtype=np.bool_)
    costs = model.unary[u][own]
    margin = costs[:, None] - costs[None, :]
    scale = float(np.max(np.abs(costs)))
    for v, table in model.neighbours[u]:
        rows = table[np.ix_(own, left[v])]
        margin += (rows[:, None, :] - rows[None, :, :]).min(axis=2)
        scale = max(scale, float(np.max(np.abs(rows))))
    first = np.tri(n, k=-1, dtype=np.bool_)  # of labels that cost the same the first one stays
    worse: Bools = (margin > 1e-12 * scale) | ((margin >= 0.0) & first)
    return np.asarray(worse.any(axis=1))
