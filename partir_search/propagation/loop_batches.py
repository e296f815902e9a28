"""Batches behind the leading dim of a loop: microbatches of accumulated gradients, time steps.

A loop runs over the leading dim of its data one index at a time, so that no mesh axis tiles the
dim. The batch is the next dim: of ``tokens[microbatch, batch, length]`` as an argument, of the
``x.reshape(microbatches, -1, length)`` of an argument whose leading dim is the whole batch, and of
``x[time, batch]``.
"""

from __future__ import annotations

from collections.abc import Iterable

from partir_search.ir.analysis.def_use import def_use
from partir_search.ir.core import Module, Value
from partir_search.rules.registry import RuleTable, edges_of

Place = tuple[Value, int]  # value and dim


def loop_batches(module: Module, arguments: Iterable[int]) -> dict[int, list[Place]]:
    """Values that a loop reads by the leading dim of data, with their dim of the batch.

    Data are followed through ops on one array: casts, reshapes, slices.

    Args:
      arguments: positions of data arguments.

    Returns:
      Places by position of the argument; no entry for an argument without such a loop. The
      argument's own place has the argument as value.
    """
    users, rule_of = def_use(module).users, RuleTable()
    found: dict[int, list[Place]] = {}
    for position in arguments:
        argument = module.body.args[position]
        if not argument.type.shape:
            continue
        # Dims of a value with the elements of the leading dim, major to minor.
        todo: list[tuple[Value, tuple[int, ...]]] = [(argument, (0,))]
        seen = set[int]()
        while todo:
            value, dims = todo.pop()
            if value.id in seen:
                continue
            seen.add(value.id)
            for op in users[value.id]:
                if op.regions:
                    stacked = [
                        edge.stacked_dims
                        for edge in edges_of(op).inputs
                        if op.operands[edge.operand] is value
                    ]
                    next_dim = max(stacked, default=0)
                    if 0 < next_dim < len(value.type.shape) and dims[0] < next_dim:
                        places = found.setdefault(position, [])
                        places += [(value, next_dim)] * ((value, next_dim) not in places)
                    continue
                if len(op.inputs()) > 1:
                    continue
                rule = rule_of(op)
                operand = rule.operands[op.inputs()[0][0]]
                factors = [f for d in dims for f in rule.factors_on(operand, d)]
                for result, made in zip(op.results, rule.results, strict=True):
                    dims_after = [rule.dim_of(made, f) for f in factors]
                    if kept := tuple(dict.fromkeys(d for d in dims_after if d >= 0)):
                        todo.append((result, kept))
    return found


def batch_dims(module: Module, arguments: Iterable[int]) -> dict[int, int]:
    """Dim of the batch of data arguments, by position: 0, or the dim after those of loops."""
    arguments = tuple(arguments)
    args, found = module.body.args, loop_batches(module, arguments)
    return {
        i: next((dim for value, dim in found.get(i, ()) if value is args[i]), 0) for i in arguments
    }
