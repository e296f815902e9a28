"""Provenance: origins of tiles."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Cause:
    """Origin of the tile of a class on one axis.

    Attributes:
      step: position in the sequence of applied actions.
      node: node by which propagation set the tile; None for a class named by the action.
    """

    step: int
    node: int | None
