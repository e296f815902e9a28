"""Region ops: one table for branches of different numbers, and values that a loop never changes."""

from __future__ import annotations

from typing import Any

import numpy as np
from jax import lax

from partir_search.ir.data_flow import NO_EDGES
from partir_search.passes.views.constants import loop_constants
from partir_search.rules.registry import RuleTable
from tests.support import module_of

X = np.ones((4,), np.float32)


def test_branches_of_different_numbers() -> None:
    """Parameters and operand types of both are equal; data-flow edges are not."""

    def fn(i: Any, x: Any) -> Any:
        two = lax.switch(i, [lambda x: x, lambda x: 2 * x], x)
        return two + lax.switch(i, [lambda x: x, lambda x: 2 * x, lambda x: 3 * x], x)

    table, module = RuleTable(), module_of(fn, np.int32(1), X)
    conds = [op for op in module.ops if op.regions]
    assert [len(op.regions) for op in conds] == [2, 3]
    for op in conds:
        edges = table(op).data_flow
        assert len(edges.trip_counts) == len(op.regions)
        assert {e.region for e in edges.outputs} == set(range(len(op.regions)))


def test_region_ops_have_edges_and_an_emitter() -> None:
    def fn(x: Any) -> Any:
        y, _ = lax.scan(lambda c, _: (c + x, None), x, None, length=3)
        return lax.optimization_barrier(y)

    table = RuleTable()
    for op in module_of(fn, X).ops:
        rule = table(op)
        assert bool(op.regions) == (rule.data_flow != NO_EDGES) == (rule.emit is not None)


def test_loop_constants() -> None:
    """Constants of a loop are the same in every iteration; carries and scanned arrays are not."""

    def scanned(x: Any, w: Any, xs: Any) -> Any:
        return lax.scan(lambda c, y: (c * w, c + y), x, xs)[0]

    def looped(x: Any, w: Any, n: Any) -> Any:
        return lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] * w), (0, x))[1]

    def branched(x: Any, w: Any, i: Any) -> Any:
        return lax.switch(i, [lambda a, b: a, lambda a, b: b], x, w)

    for fn, third, seen in (
        (scanned, np.ones((3, 4), np.float32), ["w"]),
        (looped, np.int32(3), ["n", "w"]),
        (branched, np.int32(0), ["w", "w", "x", "x"]),
    ):
        module = module_of(fn, X, X, third)
        (op,) = (op for op in module.ops if op.regions)
        names = dict(zip(module.body.args, "xwn", strict=True))
        found = [names[x] for _, x in loop_constants(op)]  # type: ignore[index]
        assert sorted(found) == seen
