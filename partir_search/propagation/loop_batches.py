"""Batches behind the leading dim of a loop: microbatches of accumulated gradients, time steps.

A loop runs over the leading dim of its data one index at a time, so that no mesh axis tiles the
dim. The batch is the next dim: of ``tokens[microbatch, batch, length]`` as an argument, of the
``x.reshape(microbatches, -1, length)`` of an argument whose leading dim is the whole batch, of
``x[time, batch]``, and of the ``embedding[x] @ w`` read by a recurrent layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from partir_search.ir.analysis.def_use import def_use
from partir_search.ir.core import Module, Op, Value
from partir_search.ir.rule import OpRule
from partir_search.rules.registry import RuleTable, edges_of

Place = tuple[Value, int]  # value and dim
Dims = tuple[int, ...]
Alike = Callable[[Value], Iterable[Value]]


def loop_batches(
    module: Module, arguments: Iterable[int], alike: Alike = lambda value: (value,)
) -> dict[int, list[Place]]:
    """Values that a loop reads by the leading dim of data, with their dim of the batch.

    Data are followed through casts, reshapes and slices, and through look-ups, products and sums
    with parameters or further data, as long as the leading dim lasts.

    Args:
      arguments: positions of data arguments.
      alike: function from a value to all values of one tiling; in a folded program some have no
        users, as their layer is represented by another.

    Returns:
      Places by position of the argument; no entry for an argument without such a loop. The
      argument's own place has the argument as value.
    """
    found = {i: _loops(module, i, alike)[0] for i in arguments}
    return {i: places for i, places in found.items() if places}


def batch_dims(module: Module, arguments: Iterable[int]) -> dict[int, int]:
    """Dim of the batch of data arguments, by position: 0, or the dim after those of loops."""
    return {i: _loops(module, i, lambda value: (value,))[1] for i in arguments}


def _loops(module: Module, position: int, alike: Alike) -> tuple[list[Place], int]:
    """Places of the batch where loops read an argument's leading dim.

    Returns:
      The places, and the argument's own dim of the batch.
    """
    users, rule_of = def_use(module).users, RuleTable()
    argument = module.body.args[position]
    places, own = list[Place](), 0
    # Of a value, the dims with the elements of the argument's dims 0 and 1, major to minor.
    todo: list[tuple[Value, Dims, Dims]] = [(argument, (0,), (1,))] if argument.type.shape else []
    seen = set[int]()
    while todo:
        value, dims, nexts = todo.pop()
        new = [v for v in alike(value) if v.id not in seen]
        seen.update(v.id for v in new)
        for value, op in [(v, op) for v in new for op in users[v.id] if not op.backward]:
            if op.regions:
                dim = _dim_behind_loop(op, value)
                if dims[0] < dim < len(value.type.shape):
                    places += [(value, dim)] * ((value, dim) not in places)
                    own = 1 if nexts == (dim,) and dims == (0,) else own
                continue
            rule = rule_of(op)
            for operand in [i for i, x in op.inputs() if x is value]:
                for n, result in enumerate(op.results):
                    if kept := _after(rule, operand, n, dims):
                        todo.append((result, kept, _after(rule, operand, n, nexts)))
    return places, own


def _dim_behind_loop(op: Op, value: Value) -> int:
    """Position of the first dim of `value` behind the dims read by a region op index by index."""
    edges = edges_of(op).inputs
    return max((e.stacked_dims for e in edges if op.operands[e.operand] is value), default=0)


def _after(rule: OpRule, operand: int, result: int, dims: Sequence[int]) -> Dims:
    """Dims of a result with the factors of an operand's `dims`."""
    given, made = rule.operands[operand], rule.results[result]
    factors = [f for d in dims if d < len(given) for f in rule.factors_on(given, d)]
    found = (rule.dim_of(made, f) for f in factors)
    return tuple(dict.fromkeys(d for d in found if d >= 0))
