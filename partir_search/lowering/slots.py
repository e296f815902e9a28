"""Values on one device, each in one layout."""

from __future__ import annotations

import dataclasses
import math
from typing import Union

from partir_search.ir.core import Literal, Shape, Value
from partir_search.ir.partition import Layout, Pending


@dataclasses.dataclass(eq=False, slots=True)
class Slot:
    """A value on the device in one layout; one object per value, layout and pending sums.

    Not all of the layout where a dim holds another stretch than its tile: `shape` says.
    """

    id: int
    value: Value
    layout: Layout
    pending: Pending
    shape: Shape
    nbytes: int = 0

    def __post_init__(self) -> None:
        self.nbytes = math.prod(self.shape) * self.value.type.itemsize


Source = Union[Slot, Literal]


def layout_of(source: Source) -> Layout:
    """Axes on each dim of a slot; () for a literal."""
    return source.layout if isinstance(source, Slot) else ()
