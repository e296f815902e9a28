"""Steps of redistribution: one frozen class per collective, and the steps of one device.

Mesh axes are major to minor. Shapes are of one device's tile.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import ClassVar

from partir_search.ir.partition import Layout, Partial
from partir_search.ir.skewed_schedule import Edge

Span = tuple[int, int, int]  # (first element in the block, first element in the window, length)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReshardStep:
    """One step of a redistribution.

    Attributes:
      axes: mesh axes of the step.
      layout / partial: layout and partial sums of the value after the step.
      kind: name of the step in printed programs.
      communicates: True if devices exchange data.
      copies: True if the target never takes the source's buffer, even with equal sizes.
    """

    axes: tuple[int, ...]
    layout: Layout
    partial: Partial
    kind: ClassVar[str]
    communicates: ClassVar[bool] = True
    copies: ClassVar[bool] = False

    def details(self) -> Iterator[str]:
        """Attributes as printed, axes apart."""
        return iter(())


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DimStep(ReshardStep):
    """A step along dim `dim` of the value."""

    dim: int

    def details(self) -> Iterator[str]:
        yield f"dim {self.dim}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Slice(DimStep):
    """Each device's tile of dim `dim`, cut from a larger tile on the device."""

    kind: ClassVar[str] = "slice"
    communicates: ClassVar[bool] = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Mask(ReshardStep):
    """The value on the first device of `axes`, zeros on all further ones: a partial sum."""

    kind: ClassVar[str] = "mask"
    communicates: ClassVar[bool] = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AllGather(DimStep):
    """All tiles of dim `dim`, on every device."""

    kind: ClassVar[str] = "all_gather"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HaloGather(AllGather):
    """All `extent` elements of dim `dim`, for a later window."""

    extent: int
    copies: ClassVar[bool] = True


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Reduction(ReshardStep):
    """Partial sums combined by `monoid`: "sum", "max", "min", "and" or "or"."""

    monoid: str

    def details(self) -> Iterator[str]:
        yield self.monoid


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AllReduce(Reduction):
    """The combined value, on every device."""

    kind: ClassVar[str] = "all_reduce"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReduceScatter(Reduction):
    """Each device's tile, along dim `dim`, of the combined value."""

    dim: int
    kind: ClassVar[str] = "reduce_scatter"

    def details(self) -> Iterator[str]:
        yield f"dim {self.dim}"
        yield self.monoid


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AllToAll(DimStep):
    """Dim `dim` gathered, dim `split_dim` tiled."""

    split_dim: int
    kind: ClassVar[str] = "all_to_all"

    def details(self) -> Iterator[str]:
        yield from DimStep.details(self)
        yield f"split {self.split_dim}"


class Edges(tuple[Edge, ...]):
    """Pairs of positions, as many as devices; their hash is computed once."""

    _hash: int | None = None

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = super().__hash__()
        return self._hash


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Permute(ReshardStep):
    """Whole tiles sent from device to device.

    Attributes:
      pairs: (source, target), positions along the axes jointly.
    """

    pairs: tuple[Edge, ...]
    kind: ClassVar[str] = "collective_permute"
    copies: ClassVar[bool] = True


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HaloPermute(ReshardStep):
    """Elements `start` to `start + length` of dim `dim` sent from device to device.

    Attributes:
      pairs: (source, target), positions along the axes jointly.
    """

    dim: int
    pairs: tuple[Edge, ...]
    start: int
    length: int
    kind: ClassVar[str] = "collective_permute"
    copies: ClassVar[bool] = True

    def details(self) -> Iterator[str]:
        yield f"dim {self.dim}"
        yield f"elements {self.start}:{self.start + self.length}"


@dataclasses.dataclass(frozen=True, slots=True)
class Piece:
    """Piece of a window, copied from one block.

    Attributes:
      block: 0 for the device's own tile (or the whole dim), i for the i-th received block.
      spans: span per device; length 0 for no elements.
    """

    block: int
    spans: tuple[Span, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Halo(ReshardStep):
    """Window of `size` elements of dim `dim`, from the own tile and received blocks.

    Attributes:
      pieces: the window's pieces; elements without a piece are zeros.
      size: number of elements along the dim.
      uniform: True if the pieces, in order, fill the window, and each piece has one span on all
        devices with elements of the piece. Consecutive pieces with one span are alternatives: each
        device has elements of one alternative.
      joined: False if the op's rule takes the own tile and the halo as separate arrays.
    """

    dim: int
    pieces: tuple[Piece, ...]
    size: int
    uniform: bool
    joined: bool = True
    kind: ClassVar[str] = "halo"
    communicates: ClassVar[bool] = False
    copies: ClassVar[bool] = True

    def details(self) -> Iterator[str]:
        yield f"dim {self.dim}"
        yield f"size {self.size}"
        if not self.joined:
            yield "apart"


COLLECTIVES = tuple(c.kind for c in (AllGather, AllReduce, ReduceScatter, AllToAll, Permute))
"""Names of collectives, in the order of reports."""
