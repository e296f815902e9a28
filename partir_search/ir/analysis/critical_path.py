"""Critical path of a program: values on which a dot depends, unlike gradients of weights."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from partir_search.ir.core import Module, Op, Region, Value, walk_regions
from partir_search.ir.rule import OpRule


def off_critical_path(module: Module, rules: Sequence[OpRule]) -> frozenset[int]:
    """Ids of values on which no dot of their region depends.

    Args:
      rules: per op id.
    """
    made = frozenset(r.id for op in module.ops for r in op.results)
    critical: set[int] = set()
    _visit(module.body, (), rules, critical)
    return made - critical


def _visit(
    region: Region, results: Iterable[int], rules: Sequence[OpRule], critical: set[int]
) -> None:
    """Adds the ids of a region's values that a dot or one of `results` needs."""
    critical.update(results)
    for op in reversed(region.ops):
        if any(r.id in critical for r in op.results) or _has_dots(op, rules):
            critical.update(v.id for _, v in op.inputs())
        if not op.regions:
            continue
        edges = rules[op.id].data_flow
        leaving = [(r, i) for r, i, out, _ in edges.outputs if op.results[out].id in critical]
        leaving += [(r, i) for r, i, _, _ in edges.carries]
        for at, inner in enumerate(op.regions):
            wanted = (inner.results[i] for r, i in leaving if r == at)
            _visit(inner, [v.id for v in wanted if isinstance(v, Value)], rules, critical)


def _has_dots(op: Op, rules: Sequence[OpRule]) -> bool:
    """True for a dot, a blockwise op, and an op with either in its regions."""
    if rules[op.id].contracts or rules[op.id].blockwise:
        return True
    inner = (o for r in op.regions for region in walk_regions(r) for o in region.ops)
    return any(rules[o.id].contracts or rules[o.id].blockwise for o in inner)
