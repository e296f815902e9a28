"""Dead-end elimination: removal of dominated labels.

Label i of u is dominated by j if `unary[i] - unary[j] + sum_v min_l (pair[i, l] - pair[j, l]) >= 0`
(Goldstein 1994). Some labelling of least energy uses no dominated label.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from partir_search.exact.pairwise import Bools, Ints, PairwiseModel

MAX_DIFFERENCES = 1 << 22  # elements of the array that compares all labels of a variable pairwise


def without_dead_ends(
    model: PairwiseModel, kept: Sequence[Ints] | None = None, rounds: int = 4
) -> list[Ints]:
    """Undominated labels, as [n] arrays of indices.

    Args:
      kept: [n] candidate labels; all by default.
      rounds: maximum number of passes; a pass visits the neighbours of variables that lost labels.
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
    """[labels left of u] True for labels dominated by a remaining label."""
    own = left[u]
    n = len(own)
    widest = max((len(left[v]) for v, _ in model.neighbours[u]), default=1)
    if n == 1 or n * n * widest > MAX_DIFFERENCES:
        return np.zeros(n, dtype=np.bool_)
    costs = model.unary[u][own]
    margin = costs[:, None] - costs[None, :]
    scale = float(np.max(np.abs(costs)))
    for v, table in model.neighbours[u]:
        rows = table[np.ix_(own, left[v])]
        margin += (rows[:, None, :] - rows[None, :, :]).min(axis=2)
        scale = max(scale, float(np.max(np.abs(rows))))
    first = np.tri(n, k=-1, dtype=np.bool_)  # of labels with equal costs the first remains
    worse: Bools = (margin > 1e-12 * scale) | ((margin >= 0.0) & first)
    return np.asarray(worse.any(axis=1))
