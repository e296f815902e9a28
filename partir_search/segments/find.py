"""Stretches of a region's instructions: equal layers, and the rest between layers.

Layers are tandem repeats with a value handed from copy to copy. Between layers, stretches with
further repeats (the optimizer's, weight by weight) are put in the order of their results first.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np

from partir_search.passes.fold.fold import Repeat, find_repeats
from partir_search.segments.atoms import Atom, dependencies
from partir_search.segments.order import by_results

MIN_WEIGHT = 20  # instructions, nested ones included, of a layer
MIN_BESIDE = 40  # of a repeat that hands nothing on: more than one weight's update
MOST = 15  # unique stretches of a region


@dataclasses.dataclass(frozen=True, slots=True)
class Stretch:
    """Equal stretches of a region: positions of atoms by copy, in order of execution.

    Attributes:
      layers: True for copies with a value handed on.
    """

    copies: tuple[tuple[int, ...], ...]
    layers: bool = False

    @property
    def middle(self) -> tuple[int, ...]:
        """The representative copy; the first and the last may read and return further values."""
        return self.copies[len(self.copies) // 2]


class Finder:
    """Stretches of one region.

    Attributes:
      follows: by atom, the positions of the atoms followed.
    """

    def __init__(
        self,
        atoms: Sequence[Atom],
        prints: Sequence[int],
        weights: Sequence[int],
        nbytes: dict[int, int],
        results: Sequence[int],
    ) -> None:
        """Prepares a region.

        Args:
          prints: by atom, a number, equal for equal instructions.
          weights: by atom, the number of instructions, nested ones included.
          nbytes: by id of a local value, its bytes on the device.
          results: ids of the region's results, in order.
        """
        self.atoms, self.weights, self.results = atoms, weights, results
        self.prints = np.array(prints, dtype=np.int64)
        self.follows = dependencies(atoms)
        self._nbytes = nbytes

    def stretches(self) -> list[Stretch]:
        """All stretches in order of execution, covering the region."""
        found: list[Stretch] = []
        rest: list[int] = []
        for part in self._cut_out(range(len(self.atoms)), layers=True):
            if part.layers:
                found += self._between(rest)
                rest = []
                found.append(part)
            else:
                rest += part.copies[0]
        return self._at_most(found + self._between(rest))

    def layers(self) -> bool:
        """True if the region has repeats with a value handed on."""
        return any(part.layers for part in self._cut_out(range(len(self.atoms)), layers=True))

    def _between(self, places: Sequence[int]) -> list[Stretch]:
        """Stretches between layers."""
        if not places:
            return []
        repeats = find_repeats(self.prints[list(places)])
        if any(each.period >= MIN_WEIGHT for each in repeats):
            places = by_results(self.atoms, self.follows, places, self.results)
        return self._cut_out(places, layers=False)

    def _cut_out(self, places: Sequence[int], *, layers: bool) -> list[Stretch]:
        """Repeats of atoms in an order, and the stretches between repeats.

        Args:
          layers: True for repeats with a value handed on, and no further repeats.
        """
        found: list[Stretch] = []
        at, least = 0, MIN_WEIGHT if layers else MIN_BESIDE
        for repeat in find_repeats(self.prints[list(places)]):
            one = places[repeat.start : repeat.start + repeat.period]
            if repeat.start < at or sum(self.weights[i] for i in one) < least:
                continue
            chosen = self._least_crossing(places, repeat, at)
            if layers and not self._crossing(places, chosen.start, chosen.period):
                continue
            if chosen.start > at:
                found.append(Stretch((tuple(places[at : chosen.start]),)))
            copies = [
                tuple(places[chosen.start + k * chosen.period :][: chosen.period])
                for k in range(chosen.copies)
            ]
            found.append(Stretch(tuple(copies), layers))
            at = chosen.stop
        if at < len(places):
            found.append(Stretch((tuple(places[at:]),)))
        return found

    def _least_crossing(self, places: Sequence[int], repeat: Repeat, begin: int) -> Repeat:
        """The repeat with the fewest bytes crossing at the first atom of copies.

        Counted are bytes from copy to copy, and bytes stored for later by the stretch before, from
        `begin` on. A repeat of more than two copies loses the last one if a later start leaves the
        last copy incomplete.
        """
        prints = self.prints[list(places)]
        slack = 0
        while (
            slack < repeat.period - 1
            and repeat.stop + slack < len(places)
            and prints[repeat.stop + slack] == prints[repeat.stop + slack - repeat.period]
        ):
            slack += 1
        last_read = {i: at for at, place in enumerate(places) for i in self.atoms[place].reads}
        stored = [0] * (repeat.period + 1)  # by start, bytes made before and read later
        for at in range(begin, repeat.start + repeat.period):
            for i in self.atoms[places[at]].makes:
                for start in range(max(at + 1, repeat.start), repeat.start + repeat.period):
                    if last_read.get(i, -1) < start:
                        break
                    stored[start - repeat.start] += self._nbytes[i]
        most = repeat.period if repeat.copies > 2 else slack + 1
        late = min(
            range(most),
            key=lambda n: stored[n] + self._crossing(places, repeat.start + n, repeat.period),
        )
        return Repeat(repeat.start + late, repeat.period, repeat.copies - (late > slack))

    def _crossing(self, places: Sequence[int], start: int, period: int) -> int:
        """Bytes of the first copy read by the second, of copies from `start` on."""
        stop = start + period
        return self._made_and_read(places[start:stop], places[stop : stop + period])

    def _made_and_read(self, makers: Sequence[int], readers: Sequence[int]) -> int:
        made = {i for at in makers for i in self.atoms[at].makes}
        read = {i for at in readers for i in self.atoms[at].reads}
        return sum(self._nbytes[i] for i in made & read)

    def _at_most(self, found: list[Stretch]) -> list[Stretch]:
        """Stretches, at most `MOST` unlike: neighbours whose copies save the least are joined.

        Layers are joined last.
        """

        def saved(pair: tuple[Stretch, Stretch]) -> tuple[bool, int]:
            each = ((len(x.copies) - 1) * sum(self.weights[i] for i in x.middle) for x in pair)
            return any(x.layers for x in pair), sum(each)

        while len(found) > MOST:
            lost = [saved(pair) for pair in itertools.pairwise(found)]
            first = lost.index(min(lost))
            pair = found[first : first + 2]
            joined = tuple(at for part in pair for copy in part.copies for at in copy)
            found[first : first + 2] = [Stretch((joined,))]
        return found
