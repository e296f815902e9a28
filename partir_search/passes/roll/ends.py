"""First and last layers of a stack, made equal to the layers between.

The first layer of a sum over layers (the gradient of a shared bias) gets an addition to zeros.
Further ops of a layer move before the first layer, or after the last.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Hashable, Iterator

from partir_search.ir.core import Module, Op, Operand, Region
from partir_search.passes.roll.again import MakeValue
from partir_search.passes.roll.end_layers import EndLayer, end_layers
from partir_search.passes.roll.find import numbered
from partir_search.rules.zeros import zeros_of

MOST_ENDS = 4  # unlike layers of one stack


def with_equal_ends(module: Module, print_of: Callable[[Op], Hashable], make: MakeValue) -> Module:
    """Module with unlike first and last layers made equal; the given module without any.

    Args:
      print_of: function from an op to a fingerprint, equal for equal computations.
      make: makes a new value.
    """
    ids = itertools.count(len(module.ops))
    for _ in range(MOST_ENDS):
        body = module.body
        found = list(end_layers(body.ops, numbered(body.ops, print_of)))
        if not found:
            break
        writer = _Writer(body.ops, make, ids)
        for layer in found:
            writer.change(layer)
        module = dataclasses.replace(module, body=Region(body.args, writer.ops(), body.results))
    return module


class _Writer:
    """Ops with additions inserted and further ops moved.

    Attributes:
      placed: by position of an op, ops to stand before the op.
      read: by (position, operand), the value to read.
      moved: positions of ops with another place.
    """

    def __init__(self, ops: tuple[Op, ...], make: MakeValue, ids: Iterator[int]) -> None:
        self._ops, self._make, self._ids = ops, make, ids
        self._placed: dict[int, list[Op]] = {}
        self._read: dict[tuple[int, int], Operand] = {}
        self._moved: set[int] = set()

    def change(self, layer: EndLayer) -> None:
        """Makes a layer equal to the layers of the repeat."""
        if layer.further:
            self._placed.setdefault(layer.moved_to, []).extend(self._ops[i] for i in layer.further)
            self._moved.update(layer.further)
        for added in layer.additions:
            like = self._ops[added.like]
            kind = like.results[0].type
            none = self._make(kind, f"{added.addend.name}_none")
            begun = self._make(kind, f"{added.addend.name}_begun")
            zeros = dataclasses.replace(zeros_of(none, like), id=next(self._ids))
            operands = [none, none]
            operands[added.operand] = added.addend
            first = like.with_parts(tuple(operands), (begun,), ())
            self._placed.setdefault(layer.low, []).append(zeros)
            self._placed.setdefault(added.at, []).append(
                dataclasses.replace(first, id=next(self._ids))
            )
            self._read.update(dict.fromkeys(added.readers, begun))

    def ops(self) -> tuple[Op, ...]:
        """All ops in order."""
        done: list[Op] = []
        changed = {position for position, _ in self._read}
        for i, op in enumerate(self._ops):
            done += self._placed.get(i, ())
            if i in changed:
                operands = enumerate(op.operands)
                read = tuple([self._read.get((i, k), x) for k, x in operands])
                op = op.with_parts(read, op.results, op.regions)
            if i not in self._moved:
                done.append(op)
        return (*done, *self._placed.get(len(self._ops), ()))
