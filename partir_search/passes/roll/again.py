"""Residuals made again by the backward layers, from fewer bytes.

Written out, a compiler fuses elementwise ops and moves of the forward pass into the readers of
their results, in the backward pass too. A scan stacks every result read by the backward scan. The
backward layers therefore repeat such ops, from the residuals with the fewest bytes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from partir_search.ir.core import Op, TensorType, Value
from partir_search.passes.roll.layers import Carried, Inner, Layers
from partir_search.passes.roll.min_cut import min_node_cut

MakeValue = Callable[[TensorType, str], Value]
Made = tuple[int, int]  # offset of an op, number of the result


def made_again(
    backward: Layers,
    forward: Layers,
    cheap: Callable[[Op], bool],
    make: MakeValue,
    again: int = 0,
) -> tuple[Layers, int]:
    """Backward layers with some forward ops repeated, and the number of further ops found.

    Args:
      backward: layers in execution order: the last forward layer first.
      cheap: function from an op to True if the op may run again.
      make: a value of a type and a name.
      again: number of further ops run again, makers of the largest residuals first.
    """
    read = {given.values[::-1] for given in backward.given}
    needed = {place for place in _places(forward) if forward.made(*place) in read}
    further: set[int] = set()  # ids of ops

    def may_repeat(op: Op) -> bool:
        return cheap(op) or op.id in further

    repeated, stored = _repeated(forward, needed, may_repeat)
    for _ in range(again):
        behind = {
            maker: forward.made(*place)[0].type.nbytes
            for place in stored
            if isinstance(place, tuple)
            for maker in _makers(forward, place[0], may_repeat)
        }
        if not behind:
            break
        offset = max(behind, key=lambda maker: (behind[maker], -maker))
        further.add(forward.first[offset].id)
        repeated, stored = _repeated(forward, needed, may_repeat)
    if not repeated:
        return backward, 0
    layers = []
    for layer, ops in enumerate(backward.ops):
        number = len(forward.ops) - 1 - layer
        layers.append(_Layer(forward, number, repeated, make).after(ops))
    return backward.with_ops(layers), len(further)


def _makers(layers: Layers, offset: int, may_repeat: Callable[[Op], bool]) -> set[int]:
    """Offsets of the ops behind an op that may not be repeated, with repeatable ops between."""
    found, seen, todo = set[int](), set[int](), [offset]
    while todo:
        at = todo.pop()
        if at in seen:
            continue
        seen.add(at)
        if may_repeat(layers.first[at]):
            todo += [s.offset for s in layers.sources[at] if isinstance(s, Inner)]
        else:
            found.add(at)
    return found


def _places(layers: Layers) -> list[Made]:
    return [(o, r) for o, op in enumerate(layers.first) for r in range(len(op.results))]


def _repeated(
    forward: Layers, needed: set[Made], cheap: Callable[[Op], bool]
) -> tuple[set[int], set[Made | Carried]]:
    """Offsets of forward ops to repeat, and the residuals stored, of the fewest bytes."""
    cost: dict[Made | Carried, int] = {}
    edges: list[tuple[Made | Carried, Made | Carried]] = []
    sources: set[Made | Carried] = set()
    for offset, op in enumerate(forward.first):
        for r, value in enumerate(op.results):
            cost[offset, r] = value.type.nbytes
            if not cheap(op):
                sources.add((offset, r))
                continue
            for source in forward.sources[offset]:
                if isinstance(source, Inner):
                    edges.append(((source.offset, source.result), (offset, r)))
                elif isinstance(source, Carried):
                    cost[source] = source.initial.type.nbytes
                    sources.add(source)
                    edges.append((source, (offset, r)))
    stored = min_node_cut(cost, edges, sources, set[Made | Carried](needed))
    repeated: set[int] = set()
    todo = list(needed - stored)
    while todo:
        offset, _ = todo.pop()
        if offset not in repeated:
            repeated.add(offset)
            inner = (s for s in forward.sources[offset] if isinstance(s, Inner))
            todo += [(s.offset, s.result) for s in inner if (s.offset, s.result) not in stored]
    return repeated, stored


@dataclasses.dataclass(frozen=True, slots=True)
class _Layer:
    """A backward layer in the making.

    Attributes:
      number: of the forward layer.
      repeated: offsets of forward ops to repeat.
      make: a value of a type and a name.
      new: by value of the forward layer, the value made again.
    """

    forward: Layers
    number: int
    repeated: set[int]
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
