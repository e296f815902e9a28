"""Ops of layers independent of the value handed from layer to layer: run before the layers.

An op on values common to all layers runs once. An op on a layer's own values runs for
each layer if the results are residuals no larger than the operands (casts of weights): the
residual and the layer's operand are one stack. An op on both (a projection of an encoder's result
in each layer of the decoder) stays. Views are made again (`passes/roll/again.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Set

from partir_search.ir.core import Op, Value
from partir_search.passes.roll.again import reading
from partir_search.passes.roll.layers import Given, Inner, Layers, independent


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Split:
    """Layers without the ops run before.

    Attributes:
      layers: the remaining ops.
      before: ops to run before the layers, in order.
      same: value of the first layer in place of the same value of another layer.
    """

    layers: Layers
    before: tuple[Op, ...]
    same: dict[Value, Value]


def split_off(
    layers: Layers, late: Set[int], read: Set[Value], moves: Callable[[Op], bool]
) -> Split:
    """Splits the ops able to run before the layers from the layers.

    Args:
      late: ids of values to be read layer by layer: residuals of other layers.
      read: values read outside of the layers.
      moves: function from an op to True if the op moves elements without arithmetic.
    """
    common, own = independent(layers, late)
    once = _with_makers(layers, {o for o in common if not moves(layers.first[o])})
    able: set[int] = set()
    for offset, op in enumerate(layers.first):
        outside = offset in own and _made_outside(layers, offset, able)
        if outside and not moves(op) and not _grows(op):
            able.add(offset)
    wanted = {
        o for o in common | own if any(r in read for ops in layers.ops for r in ops[o].results)
    }
    for offset in reversed(range(len(layers.first))):  # a view is made again from the value
        if offset in wanted and moves(layers.first[offset]):
            wanted.update(s.offset for s in layers.sources[offset] if isinstance(s, Inner))
    each = _with_makers(layers, able & wanted) - once
    if not once and not each:
        return Split(layers, (), {})
    before = [layers.first[o] for o in sorted(once)]
    same: dict[Value, Value] = {}
    for ops in layers.ops:
        before += [ops[o] for o in sorted(each)]
        for o in once:
            same.update(zip(ops[o].results, layers.first[o].results, strict=True))
    kept = [o for o in range(len(layers.first)) if o not in once and o not in each]
    remaining = layers.with_ops([reading([ops[o] for o in kept], same) for ops in layers.ops])
    return Split(remaining, tuple(before), same)


def _with_makers(layers: Layers, offsets: Set[int]) -> set[int]:
    """Some offsets, and the offsets of all ops of the layer behind them."""
    found: set[int] = set()
    todo = list(offsets)
    while todo:
        offset = todo.pop()
        if offset not in found:
            found.add(offset)
            todo += [s.offset for s in layers.sources[offset] if isinstance(s, Inner)]
    return found


def _made_outside(layers: Layers, offset: int, outside: Set[int]) -> bool:
    """True if an op reads values of its own layer made outside, and none common to all layers."""
    sources = layers.sources[offset]
    if any(isinstance(s, Given) and s.one for s in sources):
        return False
    return all(s.offset in outside for s in sources if isinstance(s, Inner))


def _grows(op: Op) -> bool:
    """True if the results of an op are larger than the operands."""
    read = {v.id: v.type.nbytes for _, v in op.inputs()}
    return sum(r.type.nbytes for r in op.results) > sum(read.values())
