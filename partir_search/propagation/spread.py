"""What a decision did to one axis, kept so that an equal state need not propagate it again.

A search plays the same decisions again and again, in states that differ on other axes only: four
of five propagations are repeats.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.int8]


@dataclasses.dataclass(frozen=True, slots=True)
class Spread:
    """What one decision did to one axis, to be done again where the axis is the same.

    Attributes:
      classes / dims: what became tiled, and how.
      nodes / factors: what began to loop, and over what.
      stacked / beside: nodes with several factors on a dim, and [axes, stacked] what the axes
        looped over there: factors beneath others depend on it.
      entangled: whether another axis had a say in it: it holds for an equal state only.
    """

    classes: Ints
    dims: Bytes
    nodes: Ints
    factors: Bytes
    stacked: Ints
    beside: Bytes
    entangled: bool


Spreads = dict[tuple[object, ...], Spread]
