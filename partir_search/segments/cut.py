"""The cut of one stretch: a region with entering and leaving values."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from partir_search.lowering.local_ir import (
    UNSCHEDULED,
    Instruction,
    LocalRegion,
    Scheduling,
)
from partir_search.lowering.local_value import LocalValue
from partir_search.segments.atoms import Atom, read_by


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Cut:
    """A stretch cut out of a region.

    Attributes:
      region: instructions, with entering values as arguments and leaving values as results.
      originals: the instructions before the cut, with the full scheduling.
    """

    region: LocalRegion
    originals: tuple[Instruction, ...]


class Cutter:
    """Cuts of one region.

    Attributes:
      body: the region.
      atoms: atoms of the instructions.
      inlined: ids of small closed-over arrays, never arguments of a stretch.
    """

    def __init__(self, body: LocalRegion, atoms: Sequence[Atom], inlined: frozenset[int]) -> None:
        self.body, self.atoms, self.inlined = body, atoms, inlined
        maker: dict[int, int] = {}
        self._readers: dict[tuple[int, int], list[int]] = {}  # by (maker, local value)
        for at, atom in enumerate(atoms):
            for i in atom.reads:
                if i in maker:
                    self._readers.setdefault((maker[i], i), []).append(at)
            maker.update((i, at) for i in atom.makes)
        for x in body.results:
            if isinstance(x, LocalValue) and x.id in maker:
                self._readers.setdefault((maker[x.id], x.id), []).append(len(atoms))

    def cut(self, places: Sequence[int]) -> Cut:
        """A stretch.

        Arguments are the values read and made outside, in the order of their first uses, results
        the values made and read outside. Values of further stretches, awaited by the scheduling,
        are dropped.

        Args:
          places: positions of atoms, in order of execution.
        """
        inside = set(places)
        known: dict[int, LocalValue] = {}
        args: dict[int, LocalValue] = {}
        made: dict[int, LocalValue] = {}
        steps: list[Instruction] = []
        originals: list[Instruction] = []
        for at in places:
            for item in self.body.steps[self.atoms[at].start : self.atoms[at].stop]:
                for x in read_by(item):
                    if x.id not in known and x.id not in self.inlined:
                        known[x.id] = args[x.id] = x
                originals.append(item)
                steps.append(_scheduled(item, known))
                known.update((x.id, x) for x in item.outs)
                made.update((x.id, x) for x in item.outs)
        left = {
            i
            for at in places
            for i in self.atoms[at].makes
            if any(reader not in inside for reader in self._readers.get((at, i), ()))
        }
        results = [x for i, x in made.items() if i in left]
        region = LocalRegion(self.body.region, list(args.values()), steps, results)
        return Cut(region, tuple(originals))


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
        tiles_first=order.tiles_first,
    )
    return dataclasses.replace(item, scheduling=kept_order)
