"""The cut of one stretch: a region with entering and leaving values."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence, Set

from partir_search.lowering.local_ir import (
    UNSCHEDULED,
    Instruction,
    LocalOp,
    LocalRegion,
    Reshard,
    Scheduling,
)
from partir_search.lowering.local_value import LocalValue
from partir_search.passes.roll.min_cut import min_node_cut
from partir_search.segments.atoms import Atom, read_by


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Cut:
    """A stretch cut out of a region.

    Attributes:
      region: instructions, with entering values as arguments and leaving values as results.
      originals: the stretch's own instructions before the cut, with the full scheduling, without
        those of earlier stretches that run again.
    """

    region: LocalRegion
    originals: tuple[Instruction, ...]


_Made = tuple[int, int]
"""A local value as made at one place: position of the atom, and id."""

_OUTSIDE = -1  # position of the maker of arguments and constants


class Cutter:
    """Cuts of one region.

    Attributes:
      body: the region.
      atoms: atoms of the instructions.
      inlined: ids of small closed-over arrays, never arguments of a stretch.
      stored: by id of a value of the module, 1 if a compiler keeps the value in memory.
    """

    def __init__(
        self,
        body: LocalRegion,
        atoms: Sequence[Atom],
        inlined: Set[int] = frozenset(),
        stored: Sequence[int] = (),
    ) -> None:
        self.body, self.atoms, self.inlined, self.stored = body, atoms, inlined, stored
        self._nbytes = {x.id: x.nbytes for item in body.steps for x in (*read_by(item), *item.outs)}
        maker: dict[int, int] = {}
        self._makers: list[dict[int, int]] = []  # by atom, of the local values read
        for at, atom in enumerate(atoms):
            self._makers.append({i: maker[i] for i in atom.reads if i in maker})
            maker.update((i, at) for i in atom.makes)
        results = (x.id for x in body.results if isinstance(x, LocalValue))
        self._returned = {(maker[i], i) for i in results if i in maker}

    def cut(self, stretches: Sequence[Sequence[int]], rest: Sequence[int] = ()) -> list[Cut]:
        """All stretches of the region.

        Arguments are the values read and made outside, in the order of first uses, results the
        values made and read outside. Values recomputed by a compiler in each reader are made again
        by each stretch of readers if fewer bytes enter. Values of further stretches, awaited by the
        scheduling, are dropped.

        Args:
          stretches: positions of atoms, in order of execution.
          rest: positions of atoms in no stretch.
        """
        again = [self._again(places) for places in stretches]
        wanted = set(self._returned)
        for places, more in zip((*stretches, rest), (*again, ()), strict=True):
            inside = {*places, *more}
            for at in inside:
                made = self._makers[at].items()
                wanted.update((maker, i) for i, maker in made if maker not in inside)
        return [
            self._cut(places, more, wanted) for places, more in zip(stretches, again, strict=True)
        ]

    def _again(self, places: Sequence[int]) -> list[int]:
        """Positions of earlier atoms to run again for a stretch, in order: the fewest bytes enter.

        Of equal bytes, fewer atoms run again.
        """
        inside = set(places)
        read = {value for at in places for value in self._values_read(at) if value[0] not in inside}
        edges: list[tuple[_Made, _Made]] = []
        entering: set[_Made] = set()  # values that no atom makes again
        seen, waiting = set(read), list(read)
        while waiting:
            value = waiting.pop()
            if value[0] == _OUTSIDE or not self._recomputed(value[0]):
                entering.add(value)
                continue
            for source in self._values_read(value[0]):
                edges.append((source, value))
                if source not in seen:
                    seen.add(source)
                    waiting.append(source)
        cost = {value: self._nbytes[value[1]] for value in sorted(seen)}
        cut = min_node_cut(cost, edges, entering, read)
        found: set[int] = set()
        waiting = [value for value in read if value not in cut]
        while waiting:
            maker, _ = waiting.pop()
            if maker != _OUTSIDE and maker not in found:
                found.add(maker)
                waiting += [value for value in self._values_read(maker) if value not in cut]
        return sorted(found)

    def _values_read(self, at: int) -> list[_Made]:
        """Values read by an atom, without inlined constants."""
        makers = self._makers[at]
        return [(makers.get(i, _OUTSIDE), i) for i in self.atoms[at].reads if i not in self.inlined]

    def _recomputed(self, at: int) -> bool:
        """True for an instruction without communication whose results are not stored."""
        atom = self.atoms[at]
        if atom.stop - atom.start > 1:
            return False
        item = self.body.steps[atom.start]
        if isinstance(item, Reshard):
            plain = not item.step.communicates
        else:
            plain = type(item) is LocalOp and not item.regions and not item.op.effect
        return plain and not any(self.stored[x.value.id] for x in item.outs)

    def _cut(
        self, places: Sequence[int], again: Sequence[int], wanted: Set[tuple[int, int]]
    ) -> Cut:
        known: dict[int, LocalValue] = {}
        args: dict[int, LocalValue] = {}
        made: dict[int, LocalValue] = {}
        steps: list[Instruction] = []
        originals: list[Instruction] = []
        for at in (*again, *places):
            for item in self.body.steps[self.atoms[at].start : self.atoms[at].stop]:
                for x in read_by(item):
                    if x.id not in known and x.id not in self.inlined:
                        known[x.id] = args[x.id] = x
                steps.append(_scheduled(item, known))
                known.update((x.id, x) for x in item.outs)
                made.update((x.id, x) for x in item.outs)
                originals.append(item)
        left = {i for at in places for i in self.atoms[at].makes if (at, i) in wanted}
        results = [x for i, x in made.items() if i in left]
        region = LocalRegion(self.body.region, list(args.values()), steps, results)
        return Cut(region, tuple(originals[len(again) :]))


def _scheduled(item: Instruction, known: dict[int, LocalValue]) -> Instruction:
    """The instruction without orders on values neither made nor read by the stretch."""
    order = item.scheduling
    if order is UNSCHEDULED:
        return item

    def kept(values: tuple[LocalValue, ...]) -> tuple[LocalValue, ...]:
        return tuple(x for x in values if x.id in known)

    before = kept(order.before or ())
    kept_order = Scheduling(
        after=kept(order.after),
        operands_after=kept(order.operands_after),
        before=before or (None if order.before else order.before),
        barrier=None if order.barrier is None else kept(order.barrier),
        row_major=order.row_major,
        by_columns=order.by_columns,
        in_order=order.in_order,
        tiles_first=order.tiles_first,
    )
    return dataclasses.replace(item, scheduling=kept_order)
