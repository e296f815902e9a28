"""Kinds of arrays outside of the loop: a parameter of all layers, with gradients and moments."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Hashable, Iterable, Mapping

from partir_search.ir.analysis.union_find import UnionFind
from partir_search.ir.core import Module, Op, Operand, Value
from partir_search.passes.pipeline.joined import Joined
from partir_search.passes.pipeline.loop_parts import named

Update = tuple[tuple[tuple[Hashable, ...], ...], tuple[Hashable, ...]]
"""Ops of a class with the places of what they read, and the places of what leaves the class."""


@dataclasses.dataclass(eq=False, slots=True)
class LayerKind:
    """Classes of values of one kind.

    Attributes:
      count: number of layers.
      stack: a stack of all layers, read or made by the loop.
      layers: class of each layer's arrays; () if all layers lie in the rows of one array.
      classes: all classes, of stacks and of layers.
      arguments: [kinds of state][layers] positions of arguments.
      why: reason against an exchange of the layers' elements; "" for none.
    """

    count: int
    stack: Value
    layers: tuple[Value, ...] = ()
    classes: set[Value] = dataclasses.field(default_factory=set)
    arguments: list[list[int]] = dataclasses.field(default_factory=list)
    why: str = ""


def kinds_of(module: Module, joined: Joined, ends: Iterable[tuple[Value, int]]) -> list[LayerKind]:
    """Kinds of arrays read by the layers, or with gradients made there.

    Args:
      joined: classes of the values outside of the loop.
      ends: stacks read or made by the loop, each with the number of layers.
    """
    families = UnionFind(len(module.values))
    for op in (*joined.stacks, *joined.rows):
        first, *others = (joined.of(x).id for x in (*(x for _, x in op.inputs()), *op.results))
        for other in others:
            families.merge(first, other)
    found: dict[int, LayerKind] = {}
    for stack, count in ends:
        found.setdefault(families.find(joined.of(stack).id), LayerKind(count, stack))
    members = _members(module, joined)
    for family, kind in found.items():
        _fill(kind, joined, families, family)
        if not kind.why:
            _read_arguments(kind, module, joined, members)
    return list(found.values())


def _fill(kind: LayerKind, joined: Joined, families: UnionFind, family: int) -> None:
    """Finds the class of each layer's arrays."""
    layers: dict[Value, int] = {}
    stacks = {joined.of(kind.stack)}
    for op in (*joined.stacks, *joined.rows):
        stacked = op in joined.stacks
        stack = op.results[0] if stacked else op.operands[0]
        assert isinstance(stack, Value)
        if families.find(joined.of(stack).id) != family:
            continue
        stacks.add(joined.of(stack))
        parts = op.operands if stacked else op.results
        if len(parts) != kind.count:
            kind.why = f"{named(op)} joins {len(parts)} of {kind.count} layers"
        for i, x in enumerate(parts):
            if not joined.is_joined(x):
                kind.why = kind.why or "layers have single elements"
            elif layers.setdefault(joined.of(x), i) != i:  # type: ignore[arg-type]
                kind.why = kind.why or f"{named(op)} joins arrays of one layer twice"
    kind.classes = {*layers, *stacks}
    if layers.keys() & stacks:
        kind.why = kind.why or "stacks and arrays of single layers are combined"
    if layers and len(layers) != kind.count:
        kind.why = kind.why or "layers have several arrays that no op combines"
    for c in (*layers, *stacks):
        kind.why = kind.why or joined.against.get(c, "")
    if layers:
        kind.layers = tuple(sorted(layers, key=layers.__getitem__))


def _read_arguments(
    kind: LayerKind, module: Module, joined: Joined, members: Mapping[Value, _Members]
) -> None:
    """Finds the arguments of each layer, and compares the updates of the layers."""
    if not kind.layers:
        kind.arguments = [[i] for i in members[joined.of(kind.stack)].arguments]
        return
    stacks = kind.classes.difference(kind.layers)
    if any(members[c].arguments for c in stacks if c in members):
        kind.why = "a stack of all layers and arrays of single layers are combined"
        return
    first, *others = (_Layer(members[c], module, joined) for c in kind.layers)
    for i, layer in enumerate(others, 1):
        if layer.update != first.update:
            kind.why = f"layers 0 and {i} are updated differently{first.difference(layer)}"
            return
    every = [first.arguments, *(x.arguments for x in others)]
    kind.arguments = [list(each) for each in zip(*every, strict=True)]


@dataclasses.dataclass(eq=False, slots=True)
class _Members:
    """Readers and makers of the values of a class, in order.

    Attributes:
      rows, stacked: values from, and for, a stack, each with the number of the op.
      ops: elementwise ops, and totals.
      ties, arguments: positions.
    """

    rows: list[tuple[Value, int]] = dataclasses.field(default_factory=list)
    stacked: list[tuple[Value, int]] = dataclasses.field(default_factory=list)
    ops: list[Op] = dataclasses.field(default_factory=list)
    ties: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    arguments: list[int] = dataclasses.field(default_factory=list)


def _members(module: Module, joined: Joined) -> Mapping[Value, _Members]:
    """Members of all classes, by class."""
    found = collections.defaultdict[Value, _Members](_Members)
    for n, op in enumerate(joined.rows):
        for x in op.results:
            found[joined.of(x)].rows.append((x, n))
    for n, op in enumerate(joined.stacks):
        for _, x in op.inputs():
            found[joined.of(x)].stacked.append((x, n))
    for op, value in joined.ops:
        found[joined.of(value)].ops.append(op)
    for a, r in module.ties:
        if joined.is_joined(module.body.args[a]):
            found[joined.of(module.body.args[a])].ties.append((a, r))
    for i, x in enumerate(module.body.args):
        if joined.is_joined(x):
            found[joined.of(x)].arguments.append(i)
    return found


class _Layer:
    """Update of one layer's arrays, with places in place of values."""

    def __init__(self, members: _Members, module: Module, joined: Joined) -> None:
        self._joined = joined
        self._places: dict[Value, Hashable] = {}
        self._position = {module.body.args[i]: i for i in members.arguments}
        self.arguments: list[int] = []
        self.ops: list[Op] = []
        self._places.update((x, ("row", n)) for x, n in members.rows)
        ops = list[tuple[Hashable, ...]]()
        for op in members.ops:
            read = tuple(self._place(x) for x in op.operands)
            ops.append((joined.print_of(op), *read))
            for r, x in enumerate(op.results):
                self._places[x] = "op", len(self.ops), r
            self.ops.append(op)
        left: list[Hashable] = [(n, self._place(x)) for x, n in members.stacked]
        for a, r in members.ties:
            old, new = module.body.args[a], module.body.results[r]
            left.append(("state", self._place(old), self._place(new)))
        self.update: Update = tuple(ops), tuple(left)

    def _place(self, x: Operand) -> Hashable:
        """Place of a value in the update; a number for values without."""
        if not isinstance(x, Value):
            return None
        if x not in self._places and x in self._position:
            self._places[x] = "argument", len(self.arguments)
            self.arguments.append(self._position[x])
        return self._places[x] if x in self._places else ("number", self._joined.number(x))

    def difference(self, other: _Layer) -> str:
        """Text about an op of one layer without its like in another's update."""
        for one, two in ((self, other), (other, self)):
            unmatched = collections.Counter(two._joined.print_of(op) for op in two.ops)
            for op in one.ops:
                if not unmatched[one._joined.print_of(op)]:
                    return f": {named(op)}"
                unmatched[one._joined.print_of(op)] -= 1
        pairs = zip(self.update[0], other.update[0], self.ops, strict=True)
        return next((f": {named(op)}" for a, b, op in pairs if a != b), "")
