"""Why classes are tiled as they are, and why nodes are not looped over."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Cause:
    """Who tiled a class on an axis: an action (`node` is None) or propagation through a node."""

    step: int
    node: int | None


@dataclasses.dataclass(frozen=True, slots=True)
class Conflict:
    """A node whose values point at several factors on one axis."""

    node: int
    axis: int
    candidates: tuple[tuple[int, int], ...]  # (factor, class that asks for it)
