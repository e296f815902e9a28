"""Atoms: instructions inseparable by a cut, with the values read and made."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from partir_search.lowering.local_ir import Instruction, LocalRegion, Reshard, RingTurn
from partir_search.lowering.local_value import LocalValue, Source
from partir_search.lowering.reshard_steps import Halo


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Atom:
    """Consecutive instructions of a region, inseparable by a cut; mostly one.

    Turns of a ring share a state, not arrays, and only the reader takes a window in pieces.

    Attributes:
      start / stop: positions of the instructions in the region.
      reads: ids of local values made before the atom.
      makes: ids of local values, redefined ones included.
    """

    start: int
    stop: int
    reads: tuple[int, ...]
    makes: tuple[int, ...]


def read_by(item: Instruction) -> Iterator[LocalValue]:
    """Local values read by an instruction, with outer values read inside of regions."""
    sources: Sequence[Source]
    if isinstance(item, Reshard):
        sources = (item.source, *item.received)
    else:
        sources = (*item.ins, *item.received)
    yield from _values(sources)
    if not isinstance(item, Reshard):
        for region in item.regions:
            yield from free(region)


def free(region: LocalRegion) -> Iterator[LocalValue]:
    """Local values read in a region and made outside of the region."""
    made = {x.id for x in region.args}
    for item in region.steps:
        yield from (x for x in read_by(item) if x.id not in made)
        made.update(x.id for x in item.outs)
    yield from (x for x in _values(region.results) if x.id not in made)


def _values(sources: Sequence[Source]) -> Iterator[LocalValue]:
    return (x for x in sources if isinstance(x, LocalValue))


def atoms_of(steps: Sequence[Instruction]) -> list[Atom]:
    """Atoms of a region's instructions, in order."""
    reads = [[x.id for x in read_by(item)] for item in steps]
    last = list(range(len(steps)))  # by first position, the last of the same atom
    readers: dict[int, int] = {}
    turns: dict[int, int] = {}
    for at in range(len(steps) - 1, -1, -1):
        item = steps[at]
        readers |= {i: at for i in reads[at] if i not in readers}
        if isinstance(item, RingTurn):
            last[at] = turns.setdefault(item.op.id, at)
        elif isinstance(item, Reshard) and isinstance(item.step, Halo) and not item.step.joined:
            last[at] = max(last[at], readers.pop(item.target.id, at))
        for x in item.outs:
            readers.pop(x.id, None)
    found, at = [], 0
    while at < len(steps):
        stop, seen = at + 1, at
        while seen < stop:
            stop = max(stop, last[seen] + 1)
            seen += 1
        found.append(_atom(steps, reads, at, stop))
        at = stop
    return found


def _atom(
    steps: Sequence[Instruction], reads: Sequence[Sequence[int]], start: int, stop: int
) -> Atom:
    made: dict[int, None] = {}
    entering: dict[int, None] = {}
    for at in range(start, stop):
        entering.update((i, None) for i in reads[at] if i not in made)
        made.update((x.id, None) for x in steps[at].outs)
    return Atom(start, stop, tuple(entering), tuple(made))


def dependencies(atoms: Sequence[Atom]) -> list[list[int]]:
    """Positions of the atoms followed by each atom in every order with the same results.

    An atom follows the makers of values read. As a local value may be made twice, an atom also
    follows the earlier maker and the earlier readers of each value made.
    """
    maker: dict[int, int] = {}
    readers: dict[int, list[int]] = {}
    found = []
    for at, atom in enumerate(atoms):
        before = [maker[i] for i in atom.reads if i in maker]
        for i in atom.makes:
            before += readers.pop(i, [])
            if i in maker:
                before.append(maker[i])
            maker[i] = at
        for i in atom.reads:
            readers.setdefault(i, []).append(at)
        found.append([i for i in dict.fromkeys(before) if i != at])
    return found
