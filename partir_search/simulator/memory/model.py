"""Memory of a module on a machine, under every partition."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Set

import numpy as np

from partir_search.simulator.arrays import Floats, Ints
from partir_search.simulator.memory.curve import Curve
from partir_search.simulator.memory.region_summaries import RegionSummaries
from partir_search.simulator.memory.weight_casts import FusedCasts
from partir_search.simulator.printing import table


@dataclasses.dataclass(frozen=True, eq=False)
class MemoryModel:
    """Bytes of a module's values and for how long they live.

    Attributes:
      nbytes: [values] unpartitioned bytes, as the program says.
      width: [values] stored bytes as a multiple of the type's.
      curve: of the module's body.
      casts: of weights, which dots compute themselves.
      regions: inside of the module's ops.
      argument_counts: [values] number of arguments and constants that a value stands for.
      live_values: ids of values with live ranges in the body.
    """

    nbytes: Floats
    width: Floats
    curve: Curve
    casts: FusedCasts
    regions: RegionSummaries
    argument_counts: Floats
    live_values: Ints

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
        """[values] whether each is stored; others are computed in their consumers."""
        found = np.zeros(len(self.nbytes), dtype=np.bool_)
        found[self.live_values] = True
        for values in self.regions.stored:
            found[values] = True
        return bytearray(found)

    def live_bytes(self, nbytes: Floats, stored_casts: Set[int] = frozenset()) -> Floats:
        """[R] bytes of stored values along the curve, arguments apart.

        Args:
          nbytes: [values] local bytes.
          stored_casts: ids of casts that are stored.
        """
        fused = self.casts.mask
        if stored_casts:
            fused = fused.copy()
            fused[list(stored_casts)] = False
        return self.curve.bytes_at(np.where(fused, 0.0, nbytes))
