"""Exact reduction of a pairwise model: elimination of variables with at most two neighbours.

The cost of a variable's best label is a table over the neighbours, so the reduced model is pairwise
with the same minimum. Energies of variables in chains and trees move into few tables, and message
passing over the reduced model is faster and bounds more.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from partir_search.exact.arrays import Floats, Ints
from partir_search.exact.pairwise import Labelling, ModelBuilder, PairwiseModel, adjacency

MAX_ENTRIES = 1 << 16  # of the table over an eliminated variable and the neighbours


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class _Step:
    """Elimination of one variable.

    Attributes:
      variable: the eliminated variable.
      scope: neighbours, at most two.
      costs: [labels, labels of the scope ...] costs.
      least: minimum of `costs` over the variable's labels, part of the reduced model.
    """

    variable: int
    scope: tuple[int, ...]
    costs: Floats
    least: Floats


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Reduction:
    """A reduced model.

    Attributes:
      model: model over the same variables; an eliminated variable has one label at no cost.
      steps: eliminations in order.
    """

    model: PairwiseModel
    steps: Sequence[_Step]

    def lift(self, found: Labelling) -> Labelling:
        """Labelling of the first model, of equal energy, for a labelling of the reduced model."""
        labels = np.array(found.labels, dtype=np.int64)
        for step in reversed(self.steps):
            at = (slice(None), *(labels[v] for v in step.scope))
            labels[step.variable] = int(np.argmin(step.costs[at]))
        return Labelling(found.energy, labels)

    def lift_kept(self, kept: Sequence[Ints]) -> list[Ints]:
        """[variables] labels of the first model: all of an eliminated variable, else `kept`."""
        found = list(kept)
        for step in self.steps:
            found[step.variable] = np.arange(len(step.costs), dtype=np.int64)
        return found

    def label_bounds(self, bounds: Sequence[Floats], value: float) -> list[Floats]:
        """[variables] arrays [labels] of lower bounds for labellings with the label.

        Args:
          bounds: such bounds for the reduced model.
          value: lower bound of all energies.
        """
        found = [np.maximum(each, value) for each in bounds]
        for step in reversed(self.steps):
            excess = step.costs - step.least
            best = np.full(len(step.costs), value) if step.scope else value + excess
            for axis, v in enumerate(step.scope):
                own = excess if len(step.scope) == 1 else np.min(excess, axis=2 - axis)
                best = np.maximum(best, np.min(own + found[v], axis=1))
            found[step.variable] = best
        return found


def reduce(model: PairwiseModel, max_entries: int = MAX_ENTRIES) -> Reduction:
    """Eliminates variables with at most two neighbours until none is left.

    Args:
      max_entries: limit of a variable's labels times the labels of the neighbours. Variables beyond
        the limit remain.
    """
    sizes, near = list(model.sizes), adjacency(model)
    rest = ModelBuilder(sizes)
    rest.constant = model.constant
    rest.unary[:] = [costs.copy() for costs in model.unary]
    rest.pairs.update({pair: table.copy() for pair, table in model.pairs.items()})
    steps: list[_Step] = []
    waiting = [u for u, size in enumerate(sizes) if size > 1]
    while waiting:
        u = waiting.pop()
        scope = tuple(sorted(near.get(u, ())))
        entries = sizes[u] * math.prod(sizes[v] for v in scope)
        if sizes[u] == 1 or len(scope) > 2 or entries > max_entries:
            continue
        costs = rest.unary[u].reshape(-1, *[1] * len(scope))
        for axis, v in enumerate(scope):
            table = rest.pairs.pop((u, v)) if u < v else rest.pairs.pop((v, u)).T
            shape = [1] * len(scope)
            shape[axis] = sizes[v]
            costs = costs + table.reshape(-1, *shape)
            near[v].discard(u)
        least = np.min(costs, axis=0)
        rest.add(scope, least)
        steps.append(_Step(u, scope, costs, least))
        if len(scope) == 2:
            near[scope[0]].add(scope[1])
            near[scope[1]].add(scope[0])
        sizes[u], rest.unary[u] = 1, np.zeros(1)
        near.pop(u, None)
        waiting.extend(scope)
    return Reduction(rest.model(), steps)
