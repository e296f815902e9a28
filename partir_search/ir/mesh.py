"""The logical mesh as the planner sees it: named axes with sizes, no devices."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True, slots=True)
class MeshShape:
    """Axes in major to minor order.

    Attributes:
      names: axis names, unique.
      sizes: devices along each axis.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(set(self.names)) != len(self.names) or len(self.names) != len(self.sizes):
            raise ValueError(f"mesh axes must be unique and each have a size: {self.names}")
        for name, size in zip(self.names, self.sizes, strict=True):
            if size < 1:
                raise ValueError(f"mesh axis {name!r} has size {size}; it must be at least 1")

    @classmethod
    def parse(cls, text: str) -> MeshShape:
        """`"batch:2,model:4"` to a mesh shape."""
        try:
            pairs = [part.split(":") for part in text.split(",")]
            return cls(tuple(n.strip() for n, _ in pairs), tuple(int(s) for _, s in pairs))
        except ValueError as error:
            raise ValueError(
                f"cannot read the mesh {text!r} (write it as batch:2,model:4): {error}"
            ) from error

    @property
    def devices(self) -> int:
        return math.prod(self.sizes)

    def index(self, name: str) -> int:
        """Position of the axis `name`; a ValueError that lists the axes if there is none."""
        if name not in self.names:
            raise ValueError(f"axis {name!r} is not in the mesh; its axes are {list(self.names)}")
        return self.names.index(name)

    def as_dict(self) -> Mapping[str, int]:
        return dict(zip(self.names, self.sizes, strict=True))

    def __str__(self) -> str:
        return ", ".join(f"{n}:{s}" for n, s in zip(self.names, self.sizes, strict=True))
