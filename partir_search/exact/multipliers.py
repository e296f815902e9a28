"""Multipliers of limits: the dual of a linear program over known points (Kelley 1960).

Each point has a cost and, per limit, an excess. The multipliers raise the least Lagrangian of the
points as far as possible; the primal solution mixes the points that have this Lagrangian.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from partir_search.exact.arrays import Floats, Ints

TOLERANCE = 1e-12  # of reduced costs, relative to the largest cost
MAX_PIVOTS = 500


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Multipliers:
    """Prices of limits, and the mixture of points at these prices.

    Attributes:
      value: least Lagrangian of the points, `min_k costs[k] + prices @ excesses[k]`.
      prices: [limits] cost per unit of excess, at least 0.
      mixed: points with a weight in the mixture, of which all have the least Lagrangian.
    """

    value: float
    prices: Floats
    mixed: Ints


def best_multipliers(costs: Floats, excesses: Floats, highest: float) -> Multipliers:
    """Multipliers of the highest least Lagrangian, by the simplex method on the dual.

    Args:
      costs: [points].
      excesses: [points, limits] usage above each limit; negative within the limit.
      highest: most that a price may be.
    """
    points, limits = excesses.shape
    # Columns: points, excess paid at the highest price, and usage left over. The last row makes
    # the weights of points sum to 1.
    unit, zero = np.eye(limits), np.zeros((1, limits))
    columns = np.hstack(
        (
            np.vstack((excesses.T, np.ones((1, points)))),
            np.vstack((-unit, zero)),
            np.vstack((unit, zero)),
        )
    )
    prices = np.concatenate((costs, np.full(limits, highest), np.zeros(limits)))
    first = int(np.argmin(costs))
    over = excesses[first] > 0.0
    basis = np.array(
        [*np.where(over, points, points + limits) + np.arange(limits), first], dtype=np.int64
    )
    right = np.zeros(limits + 1)
    right[-1] = 1.0
    slack = TOLERANCE * max(float(np.max(np.abs(prices))), 1e-300)
    for pivot in range(MAX_PIVOTS):
        square = columns[:, basis]
        dual = np.linalg.solve(square.T, prices[basis])
        reduced = prices - dual @ columns
        reduced[basis] = 0.0
        entering = np.flatnonzero(reduced < -slack)
        if not len(entering):
            break
        # Bland's rule, from the second half on, ends cycles.
        least = int(np.argmin(reduced[entering])) if pivot < MAX_PIVOTS // 2 else 0
        column = int(entering[least])
        direction = np.linalg.solve(square, columns[:, column])
        weights = np.linalg.solve(square, right)
        positive = np.flatnonzero(direction > 1e-13)
        if not len(positive):
            break
        ratios = np.maximum(weights[positive], 0.0) / direction[positive]
        ties = positive[ratios <= float(np.min(ratios)) + 1e-15]
        basis[ties[np.argmin(basis[ties])]] = column
    square = columns[:, basis]
    dual = np.linalg.solve(square.T, prices[basis])
    found = np.clip(-dual[:limits], 0.0, highest)
    value = float(np.min(costs + excesses @ found))
    return Multipliers(value, found, np.sort(basis[basis < points]))
