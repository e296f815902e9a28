"""Values passed from stage to stage beside the carries of several stacks of layers.

A value of a segment read in a later one is carried to the reader, or computed again by
elementwise ops and moves, from the carried values of the fewest bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from partir_search.ir.core import Op, Operand, Region, Value
from partir_search.ir.kind import Kind
from partir_search.passes.pipeline.layers import Layers
from partir_search.passes.roll.min_cut import min_node_cut
from partir_search.rules.registry import RuleTable

Runs = Sequence[tuple[int, Layers]]


def travelling(
    body: Region, runs: Runs, segment_of: Mapping[int, int]
) -> tuple[tuple[Value, ...], ...]:
    """By run, the values made in a segment after the first, and read at a stage or later.

    Args:
      runs: (stack, layers) in order of their turns; segment j of the ops outside lies before run j.
      segment_of: segment by id of a value made after the first.
    """
    return _Travelling(body, runs, segment_of).found()


class _Travelling:
    """Finds the travelling values of each segment.

    Attributes:
      until: by value, the first run after the last reader.
      whole: values read by the layers of each stage.
    """

    def __init__(self, body: Region, runs: Runs, segment_of: Mapping[int, int]) -> None:
        self._body, self._runs, self._segment_of = body, runs, segment_of
        self._stacks = {r for _, layers in runs for r in layers.stacks}
        self._rules = RuleTable()
        self.until: dict[Value, int] = {}
        self.whole: set[Value] = set()

    def found(self) -> tuple[tuple[Value, ...], ...]:
        """Values by run."""
        self._readers()
        found: list[list[Value]] = [[] for _ in self._runs]
        for segment in range(1, len(self._runs)):
            until = self._stored(segment)
            for x in sorted(until, key=lambda x: x.id):
                for run in range(segment, until[x]):
                    found[run].append(x)
        return tuple(map(tuple, found))

    def _readers(self) -> None:
        """Finds the last reader of each value."""
        run_of = {id(layers.op): j for j, (_, layers) in enumerate(self._runs)}
        for op in self._body.ops:
            run = run_of.get(id(op))
            if run is None:
                segment = max((self._segment_of.get(r.id, 0) for r in op.results), default=0)
                for _, v in op.inputs():
                    self._read(v, segment)
                continue
            layers = self._runs[run][1]
            for x in layers.consts:
                self._read(x, run + 1)
                if isinstance(x, Value):
                    self.whole.add(x)
            for x in layers.carry:
                self._read(x, run)

    def _read(self, x: Operand, until: int) -> None:
        if isinstance(x, Value) and x.id in self._segment_of and x not in self._stacks:
            self.until[x] = max(until, self.until.get(x, 0))

    def _stored(self, segment: int) -> dict[Value, int]:
        """Travelling values of a segment, with the first run after the last reader."""
        targets = {
            x: until
            for x, until in self.until.items()
            if self._segment_of[x.id] == segment and until > segment
        }
        cost = {x: x.type.nbytes for x in self._runs[segment - 1][1].finals}
        sources, edges, again = set(cost), list[tuple[Value, Value]](), dict[Value, Op]()
        for op in self._body.ops:
            made = [r for r in op.results if self._segment_of.get(r.id) == segment]
            made = [r for r in made if r not in cost and r not in self._stacks]
            cost.update((r, r.type.nbytes) for r in made)
            if not self._may_repeat(op, segment):
                sources.update(made)
                continue
            again.update(dict.fromkeys(made, op))
            edges += [(x, r) for _, x in op.inputs() if x in cost for r in made]
        stored = {x for x in targets if x in self.whole}
        cost.update(dict.fromkeys(stored, 0))
        stored |= min_node_cut(cost, edges, sources, {x for x in targets if x not in stored})
        until = dict.fromkeys(stored, 0)
        for x, last in targets.items():
            todo = [x]
            while todo:
                x = todo.pop()
                if x in stored:
                    until[x] = max(last, until[x])
                else:
                    todo += [v for _, v in again[x].inputs() if v in cost]
        return {x: last for x, last in until.items() if last}

    def _may_repeat(self, op: Op, segment: int) -> bool:
        """True for a cheap op on values of a segment, and values known in every segment."""
        rule = self._rules(op)
        read = {self._segment_of.get(x.id, 0) for _, x in op.inputs()}
        cheap = rule.moves or rule.kind is Kind.ELEMENTWISE
        return cheap and not op.regions and read <= {0, segment}
