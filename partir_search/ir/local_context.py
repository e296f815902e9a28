"""Queries of an op's local form about the device it runs on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from partir_search.ir.mesh import MeshShape


class LocalContext(Protocol):
    """Context of an op's local form: a device of the mesh, or an iteration of the interpreter."""

    @property
    def mesh(self) -> MeshShape | None:
        """Mesh of the manual region around the op; None in the interpreter."""

    def tile_index(self, factor: int) -> Any:
        """Index of this device's tile along `factor`: int32 scalar, traced or concrete."""

    def is_first(self, factor: int) -> Any:
        """True for one tile along `factor`, for operands to be counted once in a sum over tiles."""

    def tiles(self, factor: int) -> int:
        """Number of tiles along `factor`; 1 without a loop."""

    def once(self, run: Callable[[], Sequence[Any]]) -> Sequence[Any]:
        """Results on every device of `run`, which has effects and is called on one device only."""

    def last_effects(self) -> Sequence[Any]:
        """Scalar tokens that the next ordered effect must depend on."""

    def ran(self, token: Any) -> None:
        """Records `token`, returned by an ordered effect."""

    def shardings(self) -> Sequence[Any]:
        """Shardings of the op's operands at rest; empty in the interpreter."""
