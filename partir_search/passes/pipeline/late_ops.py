"""Order of the ops after the ticks: all ops of one result together."""

from __future__ import annotations

from collections.abc import Sequence

from partir_search.ir.core import Op, Operand, Value


def by_results(ops: Sequence[Op], results: Sequence[Operand]) -> list[Op]:
    """Ops in the order of the results, each op before the first reader.

    A total gathered for an update lives until the update alone, not beside the gathered totals of
    further parameters. Ops with side effects keep the order of all ops.

    Args:
      ops: ops of a region from some op on, in order.
      results: of the region.
    """
    if any(op.effect for op in ops):
        return list(ops)
    makers = {r: op for op in ops for r in op.results}
    done: set[int] = set()
    found: list[Op] = []
    roots = [makers[x] for x in results if isinstance(x, Value) and x in makers]
    todo = [*reversed(ops), *reversed(roots)]
    while todo:
        op = todo[-1]
        missing = [makers[v] for _, v in op.inputs() if v in makers and id(makers[v]) not in done]
        if id(op) not in done and missing:
            todo += reversed(missing)
            continue
        todo.pop()
        if id(op) not in done:
            done.add(id(op))
            found.append(op)
    return found
