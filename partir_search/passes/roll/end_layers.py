"""First and last layers of a stack with fewer additions, or further ops, than the layers between.

Ops beyond a repeat are compared with the repeat, op by op, away from the repeat. A missing op is an
addition to a sum of all layers: the first addend begins the sum. A further op computes a value of
all layers, or reads a finished sum.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from partir_search.ir.core import Op, Operand, Value
from partir_search.ir.role import Role
from partir_search.passes.fold.fold import MIN_PERIOD, Repeat, find_repeats
from partir_search.passes.fold.linear import weight
from partir_search.passes.roll.find import Prints, slack_of
from partir_search.rules.registry import role_of

MIN_RUN = 3  # equal ops after further ops, to go on with the layer


@dataclasses.dataclass(frozen=True, slots=True)
class Addition:
    """An addition to zeros to insert.

    Attributes:
      at: position of the op behind the addition.
      like: position of the same addition of the next layer.
      addend: value to add to zeros.
      operand: position of `addend` among the operands.
      readers: (position, operand) pairs to read the sum instead of `addend`.
    """

    at: int
    like: int
    addend: Value
    operand: int
    readers: tuple[tuple[int, int], ...]


@dataclasses.dataclass(eq=False, slots=True)
class EndLayer:
    """Ops of a layer beyond a repeat.

    Attributes:
      template: positions of the layer of the repeat to compare with.
      pairs: position of the equal op by position in the template.
      missing: place to insert an addition by position in the template.
      further: positions of further ops, in order.
      moved_to: position of the op behind the new place of the further ops.
      additions: additions to insert.
    """

    template: range
    pairs: dict[int, int] = dataclasses.field(default_factory=dict)
    missing: dict[int, int] = dataclasses.field(default_factory=dict)
    further: list[int] = dataclasses.field(default_factory=list)
    moved_to: int = 0
    additions: list[Addition] = dataclasses.field(default_factory=list)

    @property
    def length(self) -> int:
        """Number of ops of the template with an equal op or an addition to insert."""
        return len(self.pairs) + len(self.missing)

    @property
    def low(self) -> int:
        """Position of the first op."""
        return min(self.pairs.values())


def end_layers(ops: Sequence[Op], prints: Prints) -> Iterator[EndLayer]:
    """Layers with ops to insert or to move, each completing a further layer."""
    finder = _Finder(ops, prints)
    repeats = [r for r in find_repeats(prints) if finder.is_chain(r)]
    stops = [0, *(r.stop for r in repeats)]
    starts = [*(r.start for r in repeats), len(ops)]
    for k, repeat in enumerate(repeats):
        slack = slack_of(prints, repeat)
        wanted, end = repeat.period - slack, repeat.stop + slack
        first = finder.compared(repeat.start, range(stops[k], repeat.start), repeat.period, wanted)
        last = finder.compared(end, range(end, starts[k + 1]), repeat.period, wanted)
        found = [layer for layer in (first, last) if layer is not None]
        edited = [layer for layer in found if layer.missing or layer.further]
        if edited and slack + sum(layer.length for layer in found) >= repeat.period:
            yield from edited


class _Finder:
    """Compares the ops beyond a repeat with the repeat.

    Attributes:
      maker: position of the maker of a value.
      readers: (position, operand) pairs by value.
    """

    def __init__(self, ops: Sequence[Op], prints: Prints) -> None:
        self.ops, self.prints = ops, prints
        self.maker = {r: i for i, op in enumerate(ops) for r in op.results}
        self.readers: dict[Value, list[tuple[int, int]]] = {}
        for i, op in enumerate(ops):
            for k, x in op.inputs():
                self.readers.setdefault(x, []).append((i, k))

    def is_chain(self, repeat: Repeat) -> bool:
        """True if a copy reads a value of the copy before."""
        first = range(repeat.start, repeat.start + repeat.period)
        if sum(weight(self.ops[i]) for i in first) < MIN_PERIOD:
            return False
        second = self.ops[first.stop : first.stop + repeat.period]
        return any(self._at(x) in first for op in second for _, x in op.inputs())

    def _at(self, x: Operand) -> int:
        """Position of the maker; -1 for an argument, a constant or a literal."""
        return self.maker.get(x, -1) if isinstance(x, Value) else -1

    def compared(self, edge: int, beyond: range, period: int, wanted: int) -> EndLayer | None:
        """The ops `beyond` the edge of a repeat, up to one layer; None without an equal op.

        None as well if an insertion or a move would change the program.

        Args:
          wanted: number of ops to complete a layer; later ops are not further ops.
        """
        before = beyond.stop == edge
        step, i = (-1, edge - 1) if before else (1, edge)
        template = range(edge, edge + period) if before else range(edge - period, edge)
        layer = EndLayer(template)
        t = template[0 if step > 0 else -1]
        while t in template and i in beyond:
            if self.prints[i] == self.prints[t]:
                layer.pairs[t] = i
                t, i = t + step, i + step
            elif before and self._accumulates(t, template):
                layer.missing[t] = i + 1
                t += step
            else:
                skipped = self._skipped(t, i, step, beyond, template)
                if not skipped or layer.length >= wanted:
                    break
                layer.further += skipped
                i += step * len(skipped)
        if not layer.pairs:
            return None
        layer.missing = {t: at for t, at in layer.missing.items() if t > min(layer.pairs)}
        layer.further.sort()
        legal = self._add(layer, period) and self._move(layer, before)
        return layer if legal else None

    def _skipped(self, t: int, i: int, step: int, beyond: range, template: range) -> list[int]:
        """Positions of further ops from `i` on, before `MIN_RUN` ops equal to the ops at `t`."""
        run = [t + step * k for k in range(MIN_RUN)]
        if run[-1] not in template:
            return []
        for count in range(1, len(template) // 2):
            at = [i + step * (count + k) for k in range(MIN_RUN)]
            if at[-1] not in beyond:
                return []
            if all(self.prints[a] == self.prints[b] for a, b in zip(at, run, strict=True)):
                return [i + step * k for k in range(count)]
        return []

    # Additions ---------------------------------------------------------------------------------

    def _accumulates(self, t: int, template: range) -> bool:
        """True if an op adds a value of the layer to another one without further readers.

        The other value is of an earlier layer, or of ops that the unlike layer may not have: a
        layer may begin at any op.
        """
        op = self.ops[t]
        if role_of(op) is not Role.ADDITION or len(op.inputs()) != 2:
            return False
        before = [x for _, x in op.inputs() if self._at(x) not in template]
        once = [x for x in before or [x for _, x in op.inputs()] if len(self.readers[x]) == 1]
        return len(before) < 2 and bool(once)

    def _add(self, layer: EndLayer, period: int) -> bool:
        """Finds the additions to insert; False if the sums begin with further values."""
        for t, at in layer.missing.items():
            op = self.ops[t]
            known = [k for k, x in op.inputs() if self._at(x) in layer.pairs]
            if len(known) != 1:
                return False
            (operand,) = known
            own = op.operands[operand]
            assert isinstance(own, Value)
            made = layer.pairs[self._at(own)]
            addend = self.ops[made].results[self.ops[self._at(own)].results.index(own)]
            readers = []
            for position, k in self.readers.get(op.results[0], ()):
                if position in layer.template:
                    if position not in layer.pairs:
                        return False
                    readers.append((layer.pairs[position], k))
                elif position - period in layer.template:  # an op of the next layer reads the sum
                    readers.append((position - period, k))
            if not readers or any(self.ops[i].operands[k] is not addend for i, k in readers):
                return False
            layer.additions.append(Addition(at, t, addend, operand, tuple(readers)))
        return True

    # Further ops -------------------------------------------------------------------------------

    def _move(self, layer: EndLayer, before: bool) -> bool:
        """Finds the new place of the further ops; False for no place."""
        if not layer.further:
            return True
        further = set(layer.further)
        if any(self.ops[i].effect for i in further):
            return False
        low, high = layer.low, max(layer.pairs.values())
        layer.moved_to = low if before else high + 1
        if before:
            read = {self._at(x) for i in further for _, x in self.ops[i].inputs()}
            return all(at < low or at in further for at in read)
        users = {
            i for j in further for r in self.ops[j].results for i, _ in self.readers.get(r, ())
        }
        return all(i > high or i in further for i in users)
