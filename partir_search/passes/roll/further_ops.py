"""Choice of the forward ops that backward layers repeat for less memory, besides cheap ones."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Set

from partir_search.ir.core import Op
from partir_search.passes.attention import ForwardPhase
from partir_search.passes.roll.layers import Inner, Layers
from partir_search.passes.roll.residuals import Made, Residuals, least_residuals

MOST_MAKERS = 10  # of which every set is compared, those of the largest residuals
MOST_TRIED = 20  # sets of which the residuals are found


def _no_operations(op: Op) -> float:
    return 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class Again:
    """Ops of a layer to repeat, besides cheap ones.

    Attributes:
      count: number of ops, makers of the largest residuals first; without `spared`.
      spared: share of the bytes of a layer's residuals that need not be stored, at least, with the
        ops of the fewest operations; 0 for none.
      operations: function from an op to the number of floating-point operations.
      attentions: forward passes of attention. Scores are no residuals; maxima, sums and results
        are residuals, unless ops are to be repeated: attention is first, as a whole, as no
        collective stands before its products.
    """

    count: int = 0
    spared: float = 0.0
    operations: Callable[[Op], float] = _no_operations
    attentions: tuple[ForwardPhase, ...] = ()

    @property
    def scores(self) -> frozenset[int]:
        """Ids of the ops that make scores of attention."""
        return frozenset[int]().union(*(phase.scores for phase in self.attentions))


@dataclasses.dataclass(frozen=True, slots=True)
class Further:
    """Choice of further ops.

    Attributes:
      residuals: values stored for the backward layers, and all ops that run again.
      count: number of further ops besides those of attention.
    """

    residuals: Residuals
    count: int


def further_ops(
    forward: Layers, needed: Set[Made], cheap: Callable[[Op], bool], again: Again
) -> Further:
    """Ops to repeat besides cheap ones.

    Args:
      needed: places read by the backward layers.
      cheap: function from an op to True if the op runs again in any case.
    """
    choice = _Choice(forward, needed, cheap, again.attentions)
    if not again.spared and not again.count:
        return Further(choice.residuals(frozenset()), 0)
    attentions = frozenset(choice.rows)
    if again.spared:
        chosen = choice.cheapest(again.spared, again.operations, attentions)
    else:
        chosen = frozenset(itertools.islice(choice.largest_first(attentions), again.count))
    return Further(choice.residuals(chosen | attentions), len(chosen - attentions))


class _Choice:
    """Sets of ops that the backward layers may repeat.

    Attributes:
      forward, needed, cheap: as of `further_ops`.
      rows: by offset of the last op of an attention, the offsets of the attention's ops that make
        no scores; `last` is the inverse.
    """

    def __init__(
        self,
        forward: Layers,
        needed: Set[Made],
        cheap: Callable[[Op], bool],
        attentions: tuple[ForwardPhase, ...],
    ) -> None:
        self.forward, self.needed, self.cheap = forward, needed, cheap
        self.rows: dict[int, frozenset[int]] = {}
        offset = {op.id: at for at, op in enumerate(forward.first)}
        for phase in attentions:
            rows = frozenset(offset[i] for i in phase.rows if i in offset)
            if rows:
                self.rows[max(rows)] = rows
        self.last = {at: last for last, rows in self.rows.items() for at in rows}

    def whole(self, chosen: Set[int]) -> frozenset[int]:
        """Offsets of chosen ops, with all rows of a chosen attention."""
        return frozenset[int]().union(*(self.rows.get(at, {at}) for at in chosen))

    def residuals(self, chosen: Set[int]) -> Residuals:
        """Residuals if some ops run again."""
        return least_residuals(
            self.forward, self.needed, self.cheap, self.whole(chosen), self.last.keys()
        )

    def largest_first(self, attentions: Set[int]) -> Iterator[int]:
        """Offsets of ops, the maker of the largest residual left first.

        Args:
          attentions: last ops of attentions, repeated in any case.
        """
        chosen: set[int] = {*attentions}
        while behind := self._behind(self.residuals(chosen), chosen):
            offset = max(behind, key=lambda maker: (behind[maker], -maker))
            chosen.add(offset)
            yield offset

    def cheapest(
        self, share: float, operations: Callable[[Op], float], attentions: Set[int]
    ) -> frozenset[int]:
        """Offsets of the ops of the fewest operations that spare a share of the residuals.

        Args:
          attentions: as of `largest_first`.
        """
        most = (1.0 - share) * self.residuals(frozenset()).nbytes
        first = self.residuals(attentions)
        greedy: set[int] = set()
        for offset in self.largest_first(attentions):
            if self.residuals(greedy | attentions).nbytes <= most:
                break
            greedy.add(offset)
        work = {at: operations(op) for at, op in enumerate(self.forward.first)}
        behind = self._behind(first, attentions)
        makers = sorted(behind, key=lambda maker: (-behind[maker], maker))[:MOST_MAKERS]
        gain = {at: first.nbytes - self.residuals({at} | attentions).nbytes for at in makers}

        def order(offsets: tuple[int, ...]) -> tuple[float, int, tuple[int, ...]]:
            return sum(work[at] for at in offsets), len(offsets), offsets

        sets = (
            tuple(sorted(found))
            for count in range(1, len(makers) + 1)
            for found in itertools.combinations(makers, count)
            if first.nbytes - sum(gain[at] for at in found) <= most
        )
        limit = order(tuple(sorted(greedy)))
        better = sorted((s for s in sets if order(s) < limit), key=order)[:MOST_TRIED]
        fitting = (
            frozenset(s) for s in better if self.residuals(attentions | set(s)).nbytes <= most
        )
        return next(fitting, frozenset(greedy))

    def _behind(self, residuals: Residuals, chosen: Set[int]) -> dict[int, int]:
        """Bytes of a residual, by offset of the op behind the residual."""
        found: dict[int, int] = {}
        further = self.whole(chosen)
        for place in residuals.stored:
            if isinstance(place, tuple):
                nbytes = self.forward.made(*place)[0].type.nbytes
                for maker in self._makers(place[0], further):
                    found[maker] = max(found.get(maker, 0), nbytes)
        return found

    def _makers(self, offset: int, further: Set[int]) -> set[int]:
        """Offsets of the ops behind an op that do not run again, with repeated ops between; of an
        attention, the last one.
        """
        found, seen, todo = set[int](), set[int](), [offset]
        while todo:
            at = todo.pop()
            if at in seen:
                continue
            seen.add(at)
            if self.cheap(self.forward.first[at]) or at in further:
                todo += [s.offset for s in self.forward.sources[at] if isinstance(s, Inner)]
            else:
                found.add(self.last.get(at, at))
        return found
