"""Residuals made again by the backward layers, from smaller ones.

A forward layer's broadcast or widening cast costs nothing at a reader, but much as a stack
over all layers; likewise a view of a parameter, or of a value common to all layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from partir_search.ir.core import Op, TensorType, Value
from partir_search.passes.roll.layers import Layers, independent

MakeValue = Callable[[TensorType, str], Value]


def made_again(
    backward: Layers, forward: Layers, cheap: Callable[[Op], bool], make: MakeValue
) -> Layers:
    """Backward layers with some forward ops repeated: of large results, or without the carry.

    Args:
      backward: layers in execution order: the last forward layer first.
      cheap: function from an op to True if the op may run again.
      make: a value of a type and a name.
    """
    common, own = independent(forward)
    while True:
        read = {given.values[::-1] for given in backward.given}
        found = next(
            (
                offset
                for offset, op in enumerate(forward.first)
                if (offset in common | own or grows(op))
                and cheap(op)
                and any(forward.made(offset, r) in read for r in range(len(op.results)))
            ),
            None,
        )
        if found is None:
            return backward
        backward = backward.with_ops(
            [
                _repeating(theirs[found], ops, make)
                for theirs, ops in zip(forward.ops[::-1], backward.ops, strict=True)
            ]
        )


def grows(op: Op) -> bool:
    """True if the results of an op are larger than the operands."""
    read = {v.id: v.type.nbytes for _, v in op.inputs()}
    return sum(r.type.nbytes for r in op.results) > sum(read.values())


def _repeating(op: Op, ops: tuple[Op, ...], make: MakeValue) -> tuple[Op, ...]:
    """A layer's ops after a copy of `op`, reading the copy's results."""
    results = tuple(make(r.type, r.name) for r in op.results)
    new = dict(zip(op.results, results, strict=True))
    return op.with_parts(op.operands, results, op.regions), *reading(ops, new)


def reading(ops: Sequence[Op], new: dict[Value, Value]) -> tuple[Op, ...]:
    """Ops with some operands replaced."""

    def renewed(op: Op) -> Op:
        if not any(isinstance(x, Value) and x in new for x in op.operands):
            return op
        operands = tuple([new.get(x, x) if isinstance(x, Value) else x for x in op.operands])
        return op.with_parts(operands, op.results, op.regions)

    return tuple(map(renewed, ops))
