"""Order in which the original of a fold runs the ops of a quotient."""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Sequence

import numpy as np

from partir_search.ir.core import Module, Region
from partir_search.passes.fold.fold import Folded, find_repeats
from partir_search.passes.fold.linear import KeptOps


@dataclasses.dataclass(frozen=True, slots=True)
class Stretch:
    """Ops that run several times in a row: `layers` times the entries from `begin` to `end`."""

    begin: int
    end: int
    layers: int


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class RunOrder:
    """Order of the ops of one region, with one entry for each op of one layer.

    An op has several entries if the original runs it in several stretches, or several times in a
    layer: the norm after the embedding and the norm of each layer may be one op of a quotient.

    Attributes:
      ops: by entry, the op's position in the region.
      entries: by position in the region, the op's entries in ascending order.
      stretches: of entries, in order.
      backward: by position in the region, whether the op is of the backward pass.
      outside: number of the original's regions behind the region.
    """

    ops: np.ndarray[tuple[int], np.dtype[np.int64]]
    entries: Sequence[Sequence[int]]
    stretches: Sequence[Stretch]
    backward: Sequence[bool]
    outside: int
    _begins: Sequence[int] = ()

    @classmethod
    def of(cls, op_of: Sequence[int], backward: Sequence[bool], outside: int = 1) -> RunOrder:
        """Order of a region.

        Args:
          op_of: by op of the original's region, the position of the op of the quotient's region.
          backward / outside: as of the class.
        """
        run = np.array(op_of, dtype=np.int64)
        stretches: list[Stretch] = []
        ops: list[int] = []
        entries: list[list[int]] = [[] for _ in backward]
        at = 0

        def add(stop: int, layers: int) -> None:
            if stop > at:
                begin = len(ops)
                ops.extend(op_of[at:stop])
                stretches.append(Stretch(begin, len(ops), layers))

        distinct = len(backward) == len(run)
        for repeat in [] if distinct else find_repeats(run):
            add(repeat.start, 1)
            at = repeat.start
            add(at + repeat.period, repeat.copies)
            at = repeat.stop
        add(len(run), 1)
        for entry, position in enumerate(ops):
            entries[position].append(entry)
        begins = [s.begin for s in stretches]
        array = np.array(ops, dtype=np.int64)
        return cls(array, entries, stretches, backward, outside, begins)

    @property
    def plain(self) -> bool:
        """True if every op has one entry and runs once, in the order of the region."""
        return len(self.stretches) <= 1 and all(s.layers == 1 for s in self.stretches)

    def stretch_at(self, entry: int) -> int:
        """Number of the stretch with an entry."""
        return bisect.bisect_right(self._begins, entry) - 1


def run_orders(module: Module, folded: Folded | None = None) -> dict[Region, RunOrder]:
    """Orders of all regions of a module, or of a fold's quotient."""
    found: dict[Region, RunOrder] = {}

    def visit(region: Region, outside: int, places: KeptOps | None) -> None:
        op_of = places.op_of if places else range(len(region.ops))
        found[region] = RunOrder.of(op_of, [op.backward for op in region.ops], outside)
        for number, op in enumerate(region.ops):
            at = places.positions[number] if places else -1
            opened = places.opened.get(at) if places else None
            for i, inner in enumerate(op.regions):
                visit(inner, op.count, opened[i] if opened else None)

    visit(module.body, 1, folded.body if folded else None)
    return found
