"""Why classes are tiled as they are."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Cause:
    """Who tiled a class on an axis: an action (`node` is None) or propagation through a node."""

    step: int
    node: int | None
