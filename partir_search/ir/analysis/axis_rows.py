"""Loops and tiles on one mesh axis, and facts derived from them alone.

States of a search differ on one axis or two: they share the rows of the remaining axes, and with
them all cached facts.
"""

from __future__ import annotations

import dataclasses
import functools
from array import array
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from partir_search.ir.analysis.deferred_reductions import defer_reductions
from partir_search.ir.analysis.module_analysis import ModuleAnalysis
from partir_search.ir.rule import NONE

Numbers = npt.NDArray[np.int8]  # factors of ops, dims of values
Bools = npt.NDArray[np.bool_]
Codes = npt.NDArray[np.int16]
Sizes = npt.NDArray[np.unsignedinteger]


@dataclasses.dataclass(eq=False)
class AxisRows:
    """Loops and tiles of one mesh axis, with reductions already deferred.

    Attributes:
      loops / tiles: factor per op, dim per value; a byte each.
      partials: monoid of each value partial at rest, by value id.
      loop_row / tile_row / partial_row: loops, tiles and keys of `partials` as arrays; REPLICATED
        reads as NONE in `tile_row`.
      joining: ids of ops with finished scalars to join partial sums, on the first device.
      defers: reductions may be deferred past linear ops.
    """

    analysis: ModuleAnalysis
    loops: array[int]
    tiles: array[int]
    partials: Mapping[int, str]
    loop_row: Numbers
    tile_row: Numbers
    partial_row: Bools
    joining: frozenset[int] = frozenset()
    defers: bool = True
    _gathered: dict[AxisRows, tuple[int, int]] = dataclasses.field(default_factory=dict)
    _tiles_of: dict[int, tuple[Sizes, Sizes]] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def active(self) -> Bools:
        """[ops] True if an operand or result is in a layout different from its own at rest."""
        ports, loop = self.analysis.ports, self.loop_row
        found = np.zeros(len(loop), dtype=np.bool_)
        at = ports.start + loop[ports.op] + 1
        differ = ports.dim[at] != self.tile_row[ports.value]
        rests = self.partial_row[ports.value]
        made = ports.unfinished[at]
        if self.partials:
            passing = found.copy()
            passing[ports.op[rests & ~ports.result]] = True
            made = np.where(loop[ports.op] < 0, passing[ports.op], made)
        differ |= ports.result & (made != rests)
        found[ports.op[differ]] = True
        found[list(self.joining)] = True
        return found

    @functools.cached_property
    def codes(self) -> tuple[Codes, Codes]:
        """[values] code of tile and partial sum, and [ops] code of the loop."""
        rests = (self.tile_row.astype(np.int16) + 1) * 2 + self.partial_row
        return rests, (self.loop_row + 1).astype(np.int16)

    @functools.cached_property
    def inner(self) -> list[int]:
        """Ids of ops that loop over a minor factor of some dim."""
        compound, is_minor = self.analysis.compound, self.analysis.is_minor
        found = is_minor[np.arange(len(compound)), self.loop_row[compound] + 1]
        return [int(op) for op in compound[found]]

    def gathered(self, other: AxisRows) -> tuple[int, int]:
        """Number of all_gathers per step along this axis alone, and along the other axis alone.

        Counted are uses of values with one dim tiled by both axes, by ops that read the dim tiled
        by one axis and gathered along the second.
        """
        found = self._gathered.get(other)
        if found is None:
            uses, count = self.analysis.uses, self.analysis.count
            both = (self.tile_row >= 0) & (self.tile_row == other.tile_row)
            at = np.flatnonzero(both[uses.value])
            op, dim = uses.op[at], self.tile_row[uses.value[at]]
            here = uses.dim[uses.start[at] + self.loop_row[op] + 1] == dim
            there = uses.dim[uses.start[at] + other.loop_row[op] + 1] == dim
            found = int(count[op[there & ~here]].sum()), int(count[op[here & ~there]].sum())
            self._gathered[other] = found
        return found

    def tiles_of(self, size: int) -> tuple[Sizes, Sizes]:
        """[values] and [ops] numbers of tiles on an axis of `size` devices."""
        found = self._tiles_of.get(size)
        if found is None:
            tiles = np.array([1, size], dtype=np.min_scalar_type(size))
            found = tiles[(self.tile_row >= 0).astype(int)], tiles[(self.loop_row >= 0).astype(int)]
            self._tiles_of[size] = found
        return found


def axis_rows(
    analysis: ModuleAnalysis, loops: array[int], tiles: array[int], defers: bool = True
) -> AxisRows:
    """Rows of one axis; takes ownership of `loops` and `tiles`, changed by `defer_reductions`."""
    partials, joining = dict[int, str](), frozenset[int]()
    if defers:
        partials, joining = defer_reductions(analysis, loops, tiles)
    partial_row = np.zeros(len(tiles), dtype=np.bool_)
    partial_row[list(partials)] = True
    tile_row = np.maximum(np.frombuffer(tiles, dtype=np.int8), NONE)
    loop_row = np.frombuffer(loops, dtype=np.int8)
    return AxisRows(
        analysis=analysis,
        loops=loops,
        tiles=tiles,
        partials=partials,
        loop_row=loop_row,
        tile_row=tile_row,
        partial_row=partial_row,
        joining=joining,
        defers=defers,
    )
