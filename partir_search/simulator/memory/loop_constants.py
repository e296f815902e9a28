"""Constants that loops compute themselves: broadcasts of literals.

jax hoists a broadcast of a literal (the scores of masked positions) out of a scan. XLA sinks the
broadcast into the loop, where the kernels that read the value compute the value.
"""

from __future__ import annotations

from collections.abc import Iterator

from partir_search.ir.analysis.def_use import DefUse
from partir_search.ir.core import Op, Value
from partir_search.ir.data_flow import DataFlowEdges


def sunk_operands(op: Op, edges: DataFlowEdges, uses: DefUse) -> Iterator[tuple[Value, Value]]:
    """Pairs (operand, argument of a region) of broadcasts of literals, alike in all iterations."""
    carried = {(c.next_region, c.argument) for c in edges.carries}
    for operand, region, arg, stacked in edges.inputs:
        x = op.operands[operand]
        if isinstance(x, Value) and not stacked and (region, arg) not in carried:
            maker = uses.makers[x.id]
            if maker and maker.operands and not (maker.regions or maker.inputs()):
                yield x, op.regions[region].args[arg]
