"""Actions: the small frozen values that a plan is made of."""

from __future__ import annotations

import dataclasses
from typing import Any, Union


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Tile:
    """Tile dim `dim` of the value named `value` on mesh axis `axis`.

    Values named in `also` (the same one of other layers) are tiled in the same move, before
    anything propagates, as far as they are undecided: what is done to layers at once must not
    depend on their order.
    """

    value: str
    dim: int
    axis: str
    also: tuple[str, ...] = ()

    @property
    def values(self) -> tuple[str, ...]:
        return (self.value, *self.also)

    def to_json(self) -> dict[str, Any]:
        also = {"also": list(self.also)} if self.also else {}
        return {"tile": self.value, **also, "dim": self.dim, "axis": self.axis}

    def __str__(self) -> str:
        return f"Tile(value={self.value!r}{_alike(self.also)}, dim={self.dim}, axis={self.axis!r})"


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Replicate:
    """Keep the value named `value` whole along mesh axis `axis` (PartIR's `atomic`), and those
    named in `also` that are undecided.
    """

    value: str
    axis: str
    also: tuple[str, ...] = ()

    @property
    def values(self) -> tuple[str, ...]:
        return (self.value, *self.also)

    def to_json(self) -> dict[str, Any]:
        also = {"also": list(self.also)} if self.also else {}
        return {"replicate": self.value, **also, "axis": self.axis}

    def __str__(self) -> str:
        return f"Replicate(value={self.value!r}{_alike(self.also)}, axis={self.axis!r})"


def _alike(also: tuple[str, ...]) -> str:
    return f" and {len(also)} alike" if also else ""


Action = Union[Tile, Replicate]


class IllegalAction(ValueError):
    """An action that the state does not admit; the message names value, axis and remedy."""


def action_from_json(data: dict[str, Any]) -> Action:
    """Inverse of `to_json`; a ValueError for anything else."""
    also = tuple(map(str, data.get("also", ())))
    if "tile" in data:
        return Tile(str(data["tile"]), int(data["dim"]), str(data["axis"]), also)
    if "replicate" in data:
        return Replicate(str(data["replicate"]), str(data["axis"]), also)
    raise ValueError(f"not an action: {data!r}")
