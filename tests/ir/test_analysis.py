"""Analyses of modules: union-find, makers, users and places of values."""

from __future__ import annotations

import random
from typing import Any

import jax
import numpy as np

from partir_search.ir.analysis.def_use import def_use
from partir_search.ir.analysis.union_find import UnionFind
from partir_search.ir.core import Module, walk_regions
from partir_search.passes.rewriter import Rewriter
from tests.support import module_of


def loops(x: jax.Array, weight: jax.Array, unread: jax.Array) -> Any:
    """A scan in a scan, with a constant that the inner one reads."""
    table = np.arange(16, dtype=np.float32).reshape(4, 4)

    def inner(carry: jax.Array, row: jax.Array) -> Any:
        return carry * row + (carry @ table), carry

    def outer(carry: jax.Array, _: None) -> Any:
        carry, stacked = jax.lax.scan(inner, carry, weight)
        return carry + stacked.sum(0), None

    y, _ = jax.lax.scan(outer, x, None, length=3)
    return y + x, unread


def module() -> Module:
    args = np.ones((2, 4)), np.ones((3, 2, 4)), np.ones(4)
    return module_of(loops, *(a.astype(np.float32) for a in args))


def test_union_find() -> None:
    """Against sets that are merged one by one."""
    rng = random.Random(0)
    classes, sets = UnionFind(60), {i: {i} for i in range(60)}
    for _ in range(50):
        x, y = rng.randrange(60), rng.randrange(60)
        assert classes.merge(x, y) == (sets[x] is not sets[y])
        if sets[x] is not sets[y]:
            sets[x] |= sets[y]
            for i in sets[y]:
                sets[i] = sets[x]
        assert [classes.find(i) for i in range(60)] == [min(sets[i]) for i in range(60)]


def test_def_use() -> None:
    traced = module()
    uses = def_use(traced)
    assert def_use(traced) is uses
    regions = list(walk_regions(traced.body))
    assert len(regions) == 3
    results = [x for r in regions for x in r.results]
    for v in traced.values:
        (maker,) = [op for op in traced.ops if any(r is v for r in op.results)] or [None]
        assert uses.makers[v.id] is maker
        assert uses.maker_ids[v.id] == (-1 if maker is None else maker.id)
        readers = [op for op in traced.ops for _, x in op.inputs() if x is v]
        assert uses.users[v.id] == readers
        assert uses.counts[v.id] == len(readers) + sum(x is v for x in results)
        assert (v.id in uses.returned) == any(x is v for x in results)
    for region in regions:
        assert uses.members[region].tolist() == [op.id for op in region.ops]
        assert [uses.position[op.id] for op in region.ops] == list(range(len(region.ops)))
    loop = next(op for op in traced.body.ops if op.regions)
    contents = uses.contents(loop)
    inside = [op.id for r in walk_regions(loop.regions[0]) for op in r.ops]
    assert contents.ops.tolist() == [loop.id, *inside]
    assert not set(contents.crossing) & set(contents.inner)
    assert {v.id for v in loop.results} <= set(contents.crossing.tolist())


def test_analyses_are_of_one_module() -> None:
    """A rewritten module has its own."""
    traced = module()
    uses, names = def_use(traced), traced.value_names()
    copy = Rewriter(traced).run()
    assert def_use(copy) is not uses
    assert copy.value_names().keys() == names.keys()
    assert all(copy.value_names()[n] is not v for n, v in names.items())
