"""Questions that an op's local form may ask about the place that it runs in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from partir_search.ir.mesh import MeshShape


class LocalContext(Protocol):
    """Queries that a local form may make about the device (or loop iteration) it runs on."""

    @property
    def mesh(self) -> MeshShape | None:
        """The mesh in whose manual region the op runs; None under the oracle."""

    def tile_index(self, factor: int) -> Any:
        """Index of this device's tile along `factor`, a traced or concrete int32 scalar."""

    def tiles(self, factor: int) -> int:
        """Number of tiles along `factor`; 1 when it is not looped over."""

    def once(self, run: Callable[[], Sequence[Any]]) -> Sequence[Any]:
        """Calls `run`, which has effects, on one device in all; its results on every device."""

    def last_effects(self) -> Sequence[Any]:
        """Scalars that the next ordered effect must wait for."""

    def ran(self, token: Any) -> None:
        """An ordered effect gave back `token`."""

    def shardings(self) -> Sequence[Any]:
        """The op's operands' shardings as they rest; empty where there are no devices."""
