"""Why classes are tiled as they are."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Cause:
    """Origin of a class's tile on an axis: an action (`node` is None), or propagation by a node."""

    step: int
    node: int | None
