"""Pairs of labels that no partition has: an op's results are partial at rest exactly if their only
user passes on them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from partir_search.ir.rule import NONE
from partir_search.simulator.arrays import Bools, Ints
from partir_search.simulator.tables.label_sets import FIRST_PASS
from partir_search.simulator.tables.variables import Variables


def inconsistent_pairs(variables: Variables) -> Iterator[tuple[tuple[int, int], Bools]]:
    """Variables of a maker and a user, and [labels, labels] whether two labels contradict."""
    rules = variables.graph.rules
    makers = variables.graph.analysis.def_use.makers
    for v, q in variables.makers.items():
        maker = makers[v]
        user = int(variables.graph.analysis.consumer[v])
        u = int(variables.of_op[user])
        assert maker is not None
        made = variables.sets[q]
        numbers: dict[str, int] = {}
        reducers = [numbers.setdefault(m, len(numbers)) for m in rules[maker.id].reducers]
        passes = [
            numbers.setdefault(p.monoid, len(numbers))
            for p in variables.deferrals.passes.get(maker.id, ())
        ]
        given = np.where(made.deferred, _monoids(made.codes, reducers, passes), NONE)
        taken = np.full(variables.sets[u].codes.shape, NONE)
        for i, p in enumerate(variables.deferrals.passes[user]):
            if v in p.values:
                monoid = numbers.setdefault(p.monoid, len(numbers))
                taken[variables.sets[u].codes == FIRST_PASS - i] = monoid
        yield (q, u), (given[:, None, :] != taken[None, :, :]).any(axis=2)


def _monoids(codes: Ints, reducers: list[int], passes: list[int]) -> Ints:
    """Numbers of the monoids that loops and passes leave."""
    found = np.full(codes.shape, NONE)
    for f, monoid in enumerate(reducers):
        found[codes == f] = monoid
    for i, monoid in enumerate(passes):
        found[codes == FIRST_PASS - i] = monoid
    return found
