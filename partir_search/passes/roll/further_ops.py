"""Choice of the forward ops that backward layers repeat for less memory, besides cheap ones."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Set

from partir_search.ir.core import Op
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
    """

    count: int = 0
    spared: float = 0.0
    operations: Callable[[Op], float] = _no_operations


def further_ops(
    forward: Layers, needed: Set[Made], cheap: Callable[[Op], bool], again: Again
) -> frozenset[int]:
    """Offsets of ops to repeat.

    Args:
      needed: places read by the backward layers.
      cheap: function from an op to True if the op runs again in any case.
    """
    choice = _Choice(forward, needed, cheap)
    if again.spared:
        return choice.cheapest(again.spared, again.operations)
    return frozenset(itertools.islice(choice.largest_first(), again.count))


class _Choice:
    """Sets of ops that the backward layers may repeat.

    Attributes:
      forward, needed, cheap: as of `further_ops`.
    """

    def __init__(self, forward: Layers, needed: Set[Made], cheap: Callable[[Op], bool]) -> None:
        self.forward, self.needed, self.cheap = forward, needed, cheap

    def residuals(self, further: Set[int]) -> Residuals:
        """Residuals if some ops run again."""
        return least_residuals(self.forward, self.needed, self.cheap, further)

    def largest_first(self) -> Iterator[int]:
        """Offsets of ops, the maker of the largest residual left first."""
        further: set[int] = set()
        while behind := self._behind(self.residuals(further), further):
            offset = max(behind, key=lambda maker: (behind[maker], -maker))
            further.add(offset)
            yield offset

    def cheapest(self, share: float, operations: Callable[[Op], float]) -> frozenset[int]:
        """Offsets of the ops of the fewest operations that spare a share of the residuals."""
        first = self.residuals(frozenset())
        most = (1.0 - share) * first.nbytes
        greedy: set[int] = set()
        for offset in self.largest_first():
            if self.residuals(greedy).nbytes <= most:
                break
            greedy.add(offset)
        work = {at: operations(op) for at, op in enumerate(self.forward.first)}
        behind = self._behind(first, frozenset())
        makers = sorted(behind, key=lambda maker: (-behind[maker], maker))[:MOST_MAKERS]
        gain = {at: first.nbytes - self.residuals({at}).nbytes for at in makers}

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
        fitting = (frozenset(s) for s in better if self.residuals(set(s)).nbytes <= most)
        return next(fitting, frozenset(greedy))

    def _behind(self, residuals: Residuals, further: Set[int]) -> dict[int, int]:
        """Bytes of a residual, by offset of the op behind the residual."""
        return {
            maker: self.forward.made(*place)[0].type.nbytes
            for place in residuals.stored
            if isinstance(place, tuple)
            for maker in self._makers(place[0], further)
        }

    def _makers(self, offset: int, further: Set[int]) -> set[int]:
        """Offsets of the ops behind an op that do not run again, with repeated ops between."""
        found, seen, todo = set[int](), set[int](), [offset]
        while todo:
            at = todo.pop()
            if at in seen:
                continue
            seen.add(at)
            if self.cheap(self.forward.first[at]) or at in further:
                todo += [s.offset for s in self.forward.sources[at] if isinstance(s, Inner)]
            else:
                found.add(at)
        return found
