"""Residuals made again by the backward layers, from fewer bytes.

Written out, a compiler fuses elementwise ops and moves of the forward pass into the readers of
their results, in the backward pass too. A scan stacks every result read by the backward scan. The
backward layers therefore repeat such ops, from the residuals with the fewest bytes.

Of an attention, scores are repeated and rows (maxima, sums, results) are residuals. Behind a row
that is stored, the backward layers have the ops of the forward pass all the same, for recognition
of the attention (`rules/kept.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence, Set

from partir_search.ir.core import Op, TensorType, Value
from partir_search.passes.attention import ForwardPhase
from partir_search.passes.roll.further_ops import Again, further_ops
from partir_search.passes.roll.layers import Layers
from partir_search.passes.roll.residuals import Made, Residuals
from partir_search.rules.kept import kept_value

MakeValue = Callable[[TensorType, str], Value]


def made_again(
    backward: Layers,
    forward: Layers,
    cheap: Callable[[Op], bool],
    make: MakeValue,
    again: Again,
) -> tuple[Layers, int]:
    """Backward layers with some forward ops repeated, and the number of further ops found.

    Args:
      backward: layers in execution order: the last forward layer first.
      cheap: function from an op to True if the op may run again.
      make: a value of a type and a name.
      again: further ops to run again.
    """
    read = {given.values[::-1] for given in backward.given}
    needed = {place for place in _places(forward) if forward.made(*place) in read}
    further = further_ops(forward, needed, cheap, again)
    residuals = further.residuals
    rows, behind = _stored_rows(forward, residuals, again.attentions)
    repeated = residuals.repeated | behind
    if not repeated:
        return backward, 0
    layers = []
    for layer, ops in enumerate(backward.ops):
        number = len(forward.ops) - 1 - layer
        layers.append(_Layer(forward, number, repeated, rows, make).after(ops))
    return backward.with_ops(layers), further.count


def _stored_rows(
    forward: Layers, residuals: Residuals, attentions: Sequence[ForwardPhase]
) -> tuple[set[Made], set[int]]:
    """Places of stored rows of attention, and offsets of the ops of these attentions."""
    offset = {op.id: at for at, op in enumerate(forward.first)}
    rows, behind = set[Made](), set[int]()
    for phase in attentions:
        makers = {offset[i] for i in phase.rows if i in offset}
        stored = {p for p in residuals.stored if isinstance(p, tuple) and p[0] in makers}
        if stored:
            rows |= stored
            behind |= makers | {offset[i] for i in phase.scores if i in offset}
    return rows, behind


def _places(layers: Layers) -> list[Made]:
    return [(o, r) for o, op in enumerate(layers.first) for r in range(len(op.results))]


@dataclasses.dataclass(frozen=True, slots=True)
class _Layer:
    """A backward layer in the making.

    Attributes:
      number: of the forward layer.
      repeated: offsets of forward ops to repeat.
      rows: places of rows of attention that are stored although their ops are repeated.
      make: a value of a type and a name.
      new: by value of the forward layer, the value made again.
    """

    forward: Layers
    number: int
    repeated: Set[int]
    rows: Set[Made]
    make: MakeValue
    new: dict[Value, Value] = dataclasses.field(default_factory=dict)

    def after(self, ops: Sequence[Op]) -> list[Op]:
        """The ops of the layer, each after the repeated ops of its operands."""
        maker = {
            r: offset
            for offset in self.repeated
            for r in self.forward.ops[self.number][offset].results
        }
        done: list[Op] = []

        def repeat(value: Value) -> None:
            if value in self.new or value not in maker:
                return
            op = self.forward.ops[self.number][maker[value]]
            for _, x in op.inputs():
                repeat(x)
            (copy,) = reading([op], self.new)
            results = tuple(self.make(r.type, r.name) for r in op.results)
            self.new.update(zip(op.results, results, strict=True))
            copy = copy.with_parts(copy.operands, results, copy.regions)
            copy.backward = True
            done.append(copy)
            for r, stored in enumerate(op.results):
                if (maker[value], r) in self.rows:
                    row = self.make(stored.type, stored.name)
                    done.append(kept_value(results[r], stored, row, copy))
                    self.new[stored] = row

        for op in ops:
            for _, x in op.inputs():
                repeat(x)
            done += reading([op], self.new)
        return done


def reading(ops: Sequence[Op], new: dict[Value, Value]) -> tuple[Op, ...]:
    """Ops with some operands replaced."""

    def renewed(op: Op) -> Op:
        if not any(isinstance(x, Value) and x in new for x in op.operands):
            return op
        operands = tuple([new.get(x, x) if isinstance(x, Value) else x for x in op.operands])
        return op.with_parts(operands, op.results, op.regions)

    return tuple(map(renewed, ops))
