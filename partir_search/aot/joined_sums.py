"""Sums added to one total after all_reduces of their own.

The lowering reduces a total once if no summand grows on the way. A summand padded on the way
(gradients of a slice) has an all_reduce of its own, of fewer bytes. XLA's
`AllReduceReassociate` adds the padded partial sums, and reduces the total alone.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence

from partir_search.ir.analysis.def_use import DefUse, def_use
from partir_search.ir.core import Op, Value
from partir_search.ir.kind import Kind
from partir_search.ir.rule import OpRule
from partir_search.lowering.local_ir import LocalProgram
from partir_search.lowering.reshard_steps import AllReduce

Axes = tuple[int, ...]


def joined_sums(program: LocalProgram) -> list[tuple[Axes, int]]:
    """Axes and elements of all_reduces whose results are added to a larger sum over these axes."""
    uses, rules = def_use(program.partition.module), program.partition.rules
    sums: dict[tuple[Op, Axes], list[int]] = collections.defaultdict(list)
    for reshard, _ in program.reshards():
        source = reshard.source
        if isinstance(reshard.step, AllReduce):
            total = _total(source.value, uses, rules)
            if total is not None:
                elements = reshard.payload_bytes // source.value.type.itemsize
                sums[total, tuple(sorted(reshard.step.axes))].append(elements)
    return [(axes, n) for (_, axes), sizes in sums.items() for n in sorted(sizes)[:-1]]


def _total(value: Value, uses: DefUse, rules: Sequence[OpRule]) -> Op | None:
    """Addition reached by a value through linear ops alone, as the only operand."""
    while uses.counts[value.id] == 1 and uses.users[value.id]:
        (op,) = uses.users[value.id]
        groups = rules[op.id].linear
        if op.regions or len(op.results) != 1 or not groups:
            return None
        if rules[op.id].kind is Kind.ELEMENTWISE and any(len(group) > 1 for group in groups):
            return op
        if len(op.inputs()) != 1:
            return None
        value = op.results[0]
    return None
