"""Memory model of a module on a machine, valid for every partition."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence, Set

import numpy as np

from partir_search.simulator.arrays import Floats, Ints
from partir_search.simulator.memory.curve import Curve
from partir_search.simulator.memory.region_summaries import RegionSummaries
from partir_search.simulator.memory.tile_padding import TilePadding
from partir_search.simulator.memory.weight_casts import FusedCasts
from partir_search.simulator.printing import table


@dataclasses.dataclass(frozen=True, eq=False)
class MemoryModel:
    """Sizes, storage widths and live ranges of a module's values.

    Attributes:
      nbytes: [values] unpartitioned bytes in the program's types.
      width: [values] stored bytes as a multiple of the type's.
      rows: [values] see `memory/stacks.py`.
      curve: live bytes of the module's body.
      casts: casts of weights, computed inside of dots.
      regions: memory of regions inside of the module's ops.
      argument_counts: [values] number of arguments and constants behind a value: several in a
        quotient, 0 for values of ops.
      live_values: ids of values with live ranges in the body.
      padding: of values that fill no tiles.
      read_until: [values] see `memory/recomputed_reads.py`.
      overwritten: by id of a dot's result, the earlier value in its buffer, and that value's last
        position without the epilogue (`memory/aliases.py`).
      wide_forward: ids of values with a second copy of twice the width (`Dtypes.wide_forward`).
      early: the curve if updates run early; None if equal (`memory/early_updates.py`).
      early_values: ids of values with shorter lives then.
    """

    nbytes: Floats
    width: Floats
    rows: Floats
    curve: Curve
    casts: FusedCasts
    regions: RegionSummaries
    argument_counts: Floats
    live_values: Ints
    padding: TilePadding
    read_until: Sequence[int]
    overwritten: Mapping[int, tuple[int, int]]
    wide_forward: Set[int]
    early: Curve | None = None
    early_values: Set[int] = frozenset()

    def __str__(self) -> str:
        rows = [
            ("arguments, bytes", float(self.argument_counts @ self.nbytes)),
            ("stored values", sum(self.stored)),
            ("values in another width", int((self.width != 1.0).sum())),
            ("casts that dots compute", int(self.casts.mask.sum())),
            ("rows of the curve", len(self.curve.position)),
            ("ops with regions", len(self.regions.curves)),
        ]
        return table("MemoryModel", ("", ""), rows)

    @functools.cached_property
    def stored(self) -> bytearray:
        """[values] 1 for a stored value, 0 for a value recomputed in its consumers."""
        found = np.zeros(len(self.nbytes), dtype=np.bool_)
        found[self.live_values] = True
        for values in self.regions.stored:
            found[values] = True
        return bytearray(found)

    def live_bytes(
        self, nbytes: Floats, stored_casts: Set[int] = frozenset(), curve: Curve | None = None
    ) -> Floats:
        """[R] bytes of stored values along a curve, without arguments.

        Args:
          nbytes: [values] local bytes.
          stored_casts: ids of weight casts that are stored under this partition.
          curve: the lower of both by default.
        """
        fused = self.casts.mask
        if stored_casts:
            fused = fused.copy()
            fused[list(stored_casts)] = False
        return (curve or self.early or self.curve).bytes_at(np.where(fused, 0.0, nbytes))
