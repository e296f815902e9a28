"""Rewrite of a module: independent iterations of scans in parts that devices may share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from partir_search.ir.core import Module, Op, Region, Value
from partir_search.passes.fresh_names import FreshNames
from partir_search.passes.parallel_iterations.independent import IndependentScan, independent
from partir_search.passes.parallel_iterations.scan_in_parts import Program, ScanInParts
from partir_search.passes.rewriter import Rewriter
from partir_search.rules.registry import RuleTable

Chosen = Mapping[Op, tuple[IndependentScan, int]]


def with_parallel_iterations(
    module: Module, parts: int, worthwhile: Callable[[Op], bool] = lambda op: True
) -> Module:
    """Module with independent iterations in parts; the same one without any.

    Args:
      parts: number of parts; of a scan, the largest divisor that divides its iterations.
      worthwhile: False for scans to leave alone.
    """
    rules, chosen = RuleTable(), dict[Op, tuple[IndependentScan, int]]()
    for op in module.ops:
        count = math.gcd(int(op.params.get("length", 1)), parts) if op.regions else 1
        found = independent(op, rules) if count > 1 else None
        if found is not None and worthwhile(op):
            chosen[op] = found, count
    return _Writer(module, rules, chosen).run() if chosen else module


class _Writer(Rewriter):
    """Rewriter of all regions of a module."""

    def __init__(self, module: Module, rules: RuleTable, chosen: Chosen) -> None:
        super().__init__(module)
        self._chosen = chosen
        self._program = Program(module, [rules(op) for op in module.ops], FreshNames(module))

    def constants(self) -> Mapping[int, tuple[Value, Any]]:
        return {**super().constants(), **self._program.constants}

    def ops(self, old: Region) -> list[Op]:
        found: list[Op] = []
        for op in old.ops:
            if op in self._chosen:
                found += ScanInParts(self._program, self, op, *self._chosen[op]).run()
            else:
                found.append(self.op(op))
        return found
