"""Debugging ops (`jax.debug.print` and the like), and ops whose results only debugging ops read.

A plan is searched on the program without debugging ops: printing a value decides no tiling.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from partir_search.ir.core import Module, Op, Region, Value
from partir_search.ir.rule import OpRule
from partir_search.passes.rewriter import Rewriter


def find_debug_ops(module: Module, rules: Sequence[OpRule]) -> frozenset[int]:
    """Returns the ids of debugging ops, and of ops needed by debugging ops alone, at every depth.

    Args:
      rules: of the module's ops, by op id.
    """
    if not any(rule.debug_only for rule in rules):
        return frozenset()
    found: set[int] = set()
    _collect(module.body, rules, found)
    return frozenset(found)


def _collect(region: Region, rules: Sequence[OpRule], found: set[int]) -> bool:
    """Adds the debugging ops of a region to `found`; returns True if an op kept has an effect."""
    used = {x.id for x in region.results if isinstance(x, Value)}
    effects = False
    for op in reversed(region.ops):
        acts = op.effect and not rules[op.id].debug_only and not op.regions
        for inner in op.regions:
            acts |= _collect(inner, rules, found)
        if acts or any(r.id in used for r in op.results):
            effects |= acts
            used.update(v.id for _, v in op.inputs())
            used.update(v.id for inner in op.regions for v in _reads(inner))
        else:
            found.add(op.id)
    return effects


def _reads(region: Region) -> list[Value]:
    """Returns the values read by a region's ops at every depth, defined inside or outside."""
    read = [v for op in region.ops for _, v in op.inputs()]
    return [*read, *(v for op in region.ops for r in op.regions for v in _reads(r))]


def without_ops(module: Module, dropped: frozenset[int]) -> Module:
    """Returns a copy of the module without some ops; values keep their names."""
    return _Without(module, dropped).run()


class _Without(Rewriter):
    """Copy of a module without some ops."""

    def __init__(self, module: Module, dropped: frozenset[int]) -> None:
        super().__init__(module)
        self._dropped = dropped

    def ops(self, old: Region) -> list[Op]:
        return [self.op(op) for op in old.ops if op.id not in self._dropped]

    def op(self, old: Op) -> Op:
        new = super().op(old)
        effect = any(o.effect for r in new.regions for o in r.ops) if old.regions else old.effect
        return dataclasses.replace(new, effect=effect)
