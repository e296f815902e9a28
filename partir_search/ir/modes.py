"""What axes do besides tiling: how work along them is ordered in time, and what is held."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True, slots=True)
class Modes:
    """Chosen for whole axes, by their positions in the mesh. Replaced, never changed.

    Attributes:
      streams: axes along which products walk what is gathered or scattered for them, block by
        block (see `lowering/streams.py`), and whether attention does in zigzag.
      holds: axes along which gathered copies are held from the forward to the backward pass.
      forms: how rings walk, by diagonal (see `ir/ring.py`); on others results stay in place.
    """

    streams: Mapping[int, bool] = dataclasses.field(default_factory=dict)
    holds: frozenset[int] = frozenset()
    forms: Mapping[int, str] = dataclasses.field(default_factory=dict)


NO_MODES = Modes()
