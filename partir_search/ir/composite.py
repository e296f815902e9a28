"""An op made of several: attention, whose scores are there for a block of keys at a time only.

`Body` is a small program of its own (`Member`s in order), in which every dim has a *label*. Labels
are the op's factors. One of them, `Body.walked`, is the keys': work on several blocks of it, one
after the other, comes to what work on all of it would.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable

from partir_search.ir.core import Literal, Op
from partir_search.ir.rule import OpRule

NONE = -1
Labels = tuple[int, ...]  # label of each dim, or NONE: of size 1, or needed whole
Place = int | Literal  # of a value in a body: operands come first, then results of members


@dataclasses.dataclass(frozen=True, slots=True)
class Member:
    """One op of a body.

    Attributes:
      factors: label of each of its factors, or NONE.
    """

    op: Op
    rule: OpRule
    ins: tuple[Place, ...]
    outs: tuple[int, ...]
    factors: Labels

    @property
    def reads(self) -> tuple[int, ...]:
        """Places of its operands, NONE of a literal."""
        return tuple(NONE if isinstance(x, Literal) else x for x in self.ins)


@dataclasses.dataclass(frozen=True, slots=True)
class Online:
    """Online softmax, and the product after it, over blocks of keys one by one: sums so far are
    scaled where a larger maximum comes (Milakov and Gimelshein, arXiv 1805.02867).

    Attributes:
      top: place of the maximum over keys, or None where nothing is taken off the scores.
      total: place of the sum over keys of exponentials.
      share / weight: places of the exponentials divided by their sum, and before.
      by: place of the divisor of the exponentials.
      result: place of the product.
    """

    top: int | None
    total: int
    share: int
    weight: int
    by: int
    result: int


@dataclasses.dataclass(frozen=True, slots=True)
class RowSum:
    """A sum over keys in the backward pass that the results of the forward pass tell: of weights
    times their cotangents, which is the sum over features of results times theirs (Dao et al.,
    arXiv 2205.14135, section B.2).

    Attributes:
      place: of the sum.
      result / cotangent: places of the operands that are multiplied for it.
      rows: (place, power) of what stands in front of it.
      sign: 1 or -1.
    """

    place: int
    result: int
    cotangent: int
    rows: tuple[tuple[Place, int], ...]
    sign: int


@dataclasses.dataclass(frozen=True, slots=True)
class Body:
    """Computation of an op made of several.

    Attributes:
      labels: of the dims of each place.
      sizes: of each label.
      operands: number of places that are operands.
      results: places of the results.
      walked: the label of the keys.
      queries: the labels of dims that keys have not.
      causal: whether no query looks at later keys, and each at its own.
      scores: places with keys and queries, which are never kept.
      online: of a forward pass.
      sums: of a backward pass.
      signature: equal for bodies that do the same.
    """

    members: tuple[Member, ...] = dataclasses.field(compare=False)
    labels: tuple[Labels, ...]
    sizes: tuple[int, ...]
    operands: int
    results: tuple[int, ...]
    walked: int
    queries: frozenset[int]
    scores: frozenset[int]
    online: Online | None
    sums: tuple[RowSum, ...]
    causal: bool
    signature: Hashable
