"""Options of mesh axes besides tiling: the order of work in time, and copies that are held."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence


@dataclasses.dataclass(frozen=True, slots=True)
class Modes:
    """Chosen for whole axes, by their positions in the mesh. Replaced, never changed.

    Attributes:
      streams: axes along which products walk what is gathered or scattered for them, block by
        block (see `lowering/collective_matmul.py`), and whether attention does in zigzag.
      holds: axes along which gathered copies are held from the forward to the backward pass.
      forms: how rings walk, by diagonal (see `ir/skewed_schedule.py`); on others results stay in
      place.
      nests: (major, minor) of axes whose order on a dim that both tile is not ours to choose.
      enters / leaves: layouts in which arguments come and results leave where these are not those
        in which they rest, by their numbers.
    """

    streams: Mapping[int, bool] = dataclasses.field(default_factory=dict)
    holds: frozenset[int] = frozenset()
    forms: Mapping[int, str] = dataclasses.field(default_factory=dict)
    nests: frozenset[tuple[int, int]] = frozenset()
    enters: tuple[tuple[int, tuple[tuple[int, ...], ...]], ...] = ()
    leaves: tuple[tuple[int, tuple[tuple[int, ...], ...]], ...] = ()

    def nested(self, axes: Sequence[int]) -> list[int]:
        """Axes in this order, but for what `nests` says.

        Raises:
          ValueError: it says that each of some axes is major to another of them.
        """
        left, out = list(axes), list[int]()
        while left:
            inner = {minor for major, minor in self.nests if major in left}
            first = next((a for a in left if a not in inner), None)
            if first is None:
                raise ValueError("axes are to be major to each other")
            left.remove(first)
            out.append(first)
        return out


NO_MODES = Modes()
