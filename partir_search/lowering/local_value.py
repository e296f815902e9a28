"""Values on one device, each in one layout."""

from __future__ import annotations

import dataclasses
import math
from typing import Union

from partir_search.ir.core import Literal, Shape, Value
from partir_search.ir.partition import Layout, Pending


@dataclasses.dataclass(eq=False, slots=True)
class LocalValue:
    """A value on one device in one layout; one object per value, layout and partial sums.

    Attributes:
      pending: partial sums, as (axis, monoid).
      shape: of the device's part: of its tile, or of a window of a dim.
      nbytes: bytes of that part.
    """

    id: int
    value: Value
    layout: Layout
    pending: Pending
    shape: Shape
    nbytes: int = 0

    def __post_init__(self) -> None:
        self.nbytes = math.prod(self.shape) * self.value.type.itemsize


Source = Union[LocalValue, Literal]


def layout_of(source: Source) -> Layout:
    """Axes on each dim of a local value; () for a literal."""
    return source.layout if isinstance(source, LocalValue) else ()
