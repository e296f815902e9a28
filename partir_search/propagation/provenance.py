"""Provenance: origins of tiles."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Cause:
    """Origin of the tile of a class on one axis.

    Attributes:
      step: position of the action among those played.
      node: node that propagated the tile; None for a class that the action names.
    """

    step: int
    node: int | None
