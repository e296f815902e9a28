"""Products of a scan's body outside of the scan, for all iterations at once.

Loops over time multiply few rows by the same weights in each iteration: the input's projection, the
gradient of the input, and the weights' gradient, added up in a carry. Nothing here waits for
another iteration. One product before or after the loop reads the weights once, and reduces the
weights' gradient over devices once, as in cuDNN's recurrent layers (Appleyard et al. 2016, arXiv
1604.01946, section 3).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from partir_search.ir.analysis.readers import read_ops
from partir_search.ir.core import Module, Op, Operand, Region, Value
from partir_search.ir.role import Role
from partir_search.passes.fresh_names import FreshNames
from partir_search.passes.loop_products.body import Body
from partir_search.passes.loop_products.outside import Outside, Total
from partir_search.passes.loop_products.rows import rows_after, rows_before
from partir_search.passes.loop_products.sums import totals_outside
from partir_search.passes.parallel_iterations.independent import independent
from partir_search.passes.rewriter import Rewriter
from partir_search.rules.control_flow import ACCUMULATES
from partir_search.rules.registry import RuleTable, role_of
from partir_search.rules.stacks import stacked_type


def with_products_outside(module: Module, devices: int = 1) -> Module:
    """Module with products outside of the scans; the same one without any.

    Args:
      devices: number of devices, which share rows under data parallelism.
    """
    if not any(role_of(op) is Role.SCAN for op in module.ops):
        return module
    rewriter = _Rewriter(module, devices)
    new = rewriter.run()
    return new if rewriter.found else module


@dataclasses.dataclass(frozen=True, slots=True)
class _Parts:
    """Parts of a body to compute outside.

    Attributes:
      totals: carries to compute after the scan.
      before: products to compute before the scan.
      after: stacked results to compute after the scan.
      stacked: values to stack for `totals` and `after`.
    """

    totals: list[Total]
    before: list[Value]
    after: list[Value]
    stacked: list[Value]


def _parts(body: Body, devices: int) -> _Parts:
    """Parts with stacks of at most as many bytes as the loop's stacks so far."""
    totals, stacks = totals_outside(body, body.row_bytes, devices)
    after = rows_after(body, stacks)
    return _Parts(totals, rows_before(body, stacks.left), after, list(stacks.values))


class _Rewriter(Rewriter):
    """Rewriter of all regions of a module.

    Attributes:
      found: True after the first rewritten scan.
    """

    def __init__(self, module: Module, devices: int) -> None:
        super().__init__(module)
        self.found, self._devices = False, devices
        self._rules, self._names = RuleTable(), FreshNames(module)
        self._constants: dict[int, tuple[Value, Any]] = {}

    def constants(self) -> Mapping[int, tuple[Value, Any]]:
        return {**super().constants(), **self._constants}

    def ops(self, old: Region) -> list[Op]:
        makers = {r: op for op in old.ops for r in op.results}
        found = list[Op]()
        for op in old.ops:
            if self._waits(op):
                found += self._scan(op, makers)
            else:
                found.append(self.op(op))
        return found

    def _waits(self, op: Op) -> bool:
        """True for a scan of the user whose iterations depend on earlier ones."""
        if role_of(op) is not Role.SCAN or op.params.get(ACCUMULATES):
            return False
        return int(op.params["length"]) > 1 and independent(op, self._rules) is None

    def _scan(self, scan: Op, makers: Mapping[Value, Op]) -> list[Op]:
        """Ops in place of a scan."""
        body = Body(scan, self._rules)
        parts = _parts(body, self._devices)
        if not (parts.totals or parts.before or parts.after):
            return [self.op(scan)]
        self.found = True
        length = int(scan.params["length"])
        made = {
            x: Value(-1, stacked_type(x.type, length), self._names(f"{x.name}_rows"))
            for x in parts.stacked
        }

        def is_zeros(x: Operand) -> bool:
            while isinstance(x, Value):
                maker = makers.get(x)
                if maker is None or role_of(maker) is not Role.BROADCAST:
                    return False
                x = maker.operands[0]
            return x.is_zero()

        def outside(stacks: Mapping[Value, Value]) -> Outside:
            return Outside(self.module, body, stacks, self._names, is_zeros)

        first = outside(body.given)
        ops, stacks_before = first.write(parts.before)
        before = dict(zip(parts.before, stacks_before, strict=True))
        known = {x: y for x, y in body.stacks.items() if x not in parts.after}
        last = outside({**known, **before, **made})
        later, values = last.write(parts.after, parts.totals)
        self._constants |= first.constants | last.constants
        new, passed = _loop(body, parts, before, made)
        found = [self.op(x) for x in (*ops, new, *later)]
        stacks = {**dict(zip(parts.after, values, strict=False)), **passed}
        for x, y in body.stacked:
            if x in stacks:
                self.new[y] = self.value(stacks[x])
        for total, value in zip(parts.totals, values[len(parts.after) :], strict=True):
            self.new[scan.results[total.number]] = self.value(value)
        return found


def _loop(
    body: Body, parts: _Parts, before: Mapping[Value, Value], made: Mapping[Value, Value]
) -> tuple[Op, Mapping[Value, Value]]:
    """The scan without the parts outside, and stacks of `before` in place of stacked results."""
    scan, region = body.scan, body.region
    gone = {total.number for total in parts.totals}
    passed = {x: y for x, y in before.items() if x in region.results[body.carries :]}
    stacked = [(x, y) for x, y in body.stacked if x not in parts.after and x not in passed]
    kept = [n for n in range(body.carries) if n not in gone]
    results = [
        *((region.results[n], scan.results[n]) for n in kept),
        *stacked,
        *made.items(),
    ]
    ops = read_ops(region.ops, [x for x, _ in results], before)
    read = {x for op in ops for _, x in op.inputs()} | {x for x, _ in results}
    entering = [*zip(region.args, scan.operands, strict=True)]
    first = body.consts + body.carries
    consts = [(x, y) for x, y in entering[: body.consts] if x in read]
    carries = [entering[body.consts + n] for n in kept]
    rows = [*((x, y) for x, y in entering[first:] if x in read), *before.items()]
    arguments = [*consts, *carries, *rows]
    new = dataclasses.replace(
        scan,
        operands=tuple(y for _, y in arguments),
        results=tuple(y for _, y in results),
        regions=(Region(tuple(x for x, _ in arguments), tuple(ops), tuple(x for x, _ in results)),),
        params={
            **{k: v for k, v in scan.params.items() if k != "linear"},
            "num_consts": len(consts),
            "num_carry": len(kept),
        },
        key=None,
    )
    return new, passed
