"""Values on one device, each in one layout."""

from __future__ import annotations

import dataclasses
import math
from typing import Union

from partir_search.ir.core import Literal, Shape, Value
from partir_search.ir.partition import Layout, Partial


@dataclasses.dataclass(eq=False, slots=True)
class LocalValue:
    """A value on one device in one layout; one object per value, layout and partial sums.

    Attributes:
      id: number of the local value, unique in a `LocalCache`.
      value: value of the module.
      layout: mesh axes on each dim.
      partial: unfinished reductions, as (axis, monoid).
      shape: shape on the device: of a tile, or of a window.
      nbytes: bytes on the device.
    """

    id: int
    value: Value
    layout: Layout
    partial: Partial
    shape: Shape
    nbytes: int = 0

    def __post_init__(self) -> None:
        self.nbytes = math.prod(self.shape) * self.value.type.itemsize


Source = Union[LocalValue, Literal]


def layout_of(source: Source) -> Layout:
    """Layout of a local value; () for a literal."""
    return source.layout if isinstance(source, LocalValue) else ()
