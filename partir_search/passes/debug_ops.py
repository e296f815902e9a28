"""Debugging ops (`jax.debug.print` and the like), and ops whose results only they read.

A plan is searched without them, so that what is printed decides nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from partir_search.ir.core import Module, Op, Region, Value
from partir_search.ir.rule import OpRule
from partir_search.passes.rewriter import Rewriter


def watching(module: Module, rules: Sequence[OpRule]) -> frozenset[int]:
    """Ids of debugging ops and of those that nothing else needs, at every depth."""
    if not any(rule.watches for rule in rules):
        return frozenset()
    found: set[int] = set()
    _split(module.body, rules, found)
    return frozenset(found)


def _split(region: Region, rules: Sequence[OpRule], found: set[int]) -> bool:
    """Adds the region's watching ops to `found`; whether it has effects besides."""
    used = {x.id for x in region.results if isinstance(x, Value)}
    effects = False
    for op in reversed(region.ops):
        acts = op.effect and not rules[op.id].watches and not op.regions
        for inner in op.regions:
            acts |= _split(inner, rules, found)
        if acts or any(r.id in used for r in op.results):
            effects |= acts
            used.update(v.id for _, v in op.inputs())
            used.update(v.id for inner in op.regions for v in _captured(inner))
        else:
            found.add(op.id)
    return effects


def _captured(region: Region) -> list[Value]:
    """Values that a region's ops read; its own among them do no harm."""
    read = [v for op in region.ops for _, v in op.inputs()]
    return [*read, *(v for op in region.ops for r in op.regions for v in _captured(r))]


def unwatched(module: Module, aside: frozenset[int]) -> Module:
    """A copy of the module without the ops of `aside`; all values keep their names."""
    return _Without(module, aside).run()


class _Without(Rewriter):
    """Drops some ops of a module."""

    def __init__(self, module: Module, aside: frozenset[int]) -> None:
        super().__init__(module)
        self._aside = aside

    def ops(self, old: Region) -> list[Op]:
        return [self.op(op) for op in old.ops if op.id not in self._aside]

    def op(self, old: Op) -> Op:
        new = super().op(old)
        effect = any(o.effect for r in new.regions for o in r.ops) if old.regions else old.effect
        return dataclasses.replace(new, effect=effect)
