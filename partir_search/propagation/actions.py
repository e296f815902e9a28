"""Actions: the small frozen values that a plan is made of."""

from __future__ import annotations

import dataclasses
from typing import Any, Union


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Tile:
    """Tile dim `dim` of the value named `value` on mesh axis `axis`."""

    value: str
    dim: int
    axis: str

    def to_json(self) -> dict[str, Any]:
        return {"tile": self.value, "dim": self.dim, "axis": self.axis}


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Replicate:
    """Keep the value named `value` whole along mesh axis `axis` (PartIR's `atomic`)."""

    value: str
    axis: str

    def to_json(self) -> dict[str, Any]:
        return {"replicate": self.value, "axis": self.axis}


Action = Union[Tile, Replicate]


class IllegalAction(ValueError):
    """An action that the state does not admit; the message names value, axis and remedy."""


def action_from_json(data: dict[str, Any]) -> Action:
    """Inverse of `to_json`; a ValueError for anything else."""
    if "tile" in data:
        return Tile(str(data["tile"]), int(data["dim"]), str(data["axis"]))
    if "replicate" in data:
        return Replicate(str(data["replicate"]), str(data["axis"]))
    raise ValueError(f"not an action: {data!r}")
