"""Names of sub-axes in Shardy's notation.

`model:(2)4` is a sub-axis of size 4 of the axis `model`: devices along `model` are counted in mixed
radix, and digits of product 2 are more major than the 4.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_FORM = re.compile(r"(.+):\((\d+)\)(\d+)")


class SubAxis(NamedTuple):
    """A digit, or several consecutive ones, of a coordinate along an axis.

    Attributes:
      before: product of the sizes of more major digits.
    """

    axis: str
    before: int
    size: int

    @property
    def name(self) -> str:
        return f"{self.axis}:({self.before}){self.size}"


def parse_sub_axis(name: str) -> SubAxis | None:
    """The sub-axis of a name; None for names in another form."""
    found = _FORM.fullmatch(name)
    return SubAxis(found[1], int(found[2]), int(found[3])) if found else None
