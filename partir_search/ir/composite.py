"""Bodies of composite ops: fused attention, with scores for one block of keys at a time.

A `Body` is a small program of `Member`s in order. Each dim in it has a *label*, a factor of the
composite op. `Body.key_label` is the label of keys: blocks of keys one after another give the same
results as all keys at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable

from partir_search.ir.core import Literal, Op
from partir_search.ir.rule import OpRule

NONE = -1
Labels = tuple[int, ...]  # label of each dim, or NONE for dims of size 1 or needed whole
Place = int | Literal  # a value of a body: operands first, then results of members


@dataclasses.dataclass(frozen=True, slots=True)
class Member:
    """One op of a body.

    Attributes:
      ins / outs: places of operands and results.
      factors: label of each factor of the op, or NONE.
    """

    op: Op
    rule: OpRule
    ins: tuple[Place, ...]
    outs: tuple[int, ...]
    factors: Labels

    @property
    def reads(self) -> tuple[int, ...]:
        """Places of the operands; NONE for literals."""
        return tuple(NONE if isinstance(x, Literal) else x for x in self.ins)


@dataclasses.dataclass(frozen=True, slots=True)
class Online:
    """Places of an online softmax and the product after it.

    Blocks of keys come one by one; sums of earlier blocks are rescaled when a block raises the
    maximum (Milakov and Gimelshein, arXiv 1805.02867).

    Attributes:
      maximum: maximum over keys; None if no maximum is subtracted.
      total: sum over keys of the exponentials.
      weights / exponentials: exponentials after and before division by their sum.
      divisor: divisor of the exponentials.
      result: the product.
    """

    maximum: int | None
    total: int
    weights: int
    exponentials: int
    divisor: int
    result: int


@dataclasses.dataclass(frozen=True, slots=True)
class RowSum:
    """Sum over keys in the backward pass, computed from results of the forward pass.

    The sum of weights times their cotangents is the sum over features of results times cotangents
    (Dao et al., arXiv 2205.14135, section B.2).

    Attributes:
      place: place of the sum.
      result / cotangent: places of the operands multiplied for the sum.
      rows: (place, power) of the factors of the product.
      sign: 1 or -1.
    """

    place: int
    result: int
    cotangent: int
    rows: tuple[tuple[Place, int], ...]
    sign: int


@dataclasses.dataclass(frozen=True, slots=True)
class Body:
    """Computation of a composite op.

    Attributes:
      members: ops in order.
      labels: labels of the dims of each place.
      sizes: extent of each label.
      operands: number of places that are operands.
      results: places of the results.
      key_label: label of the keys.
      queries: labels of dims of queries only.
      scores: places of scores [queries, keys], never stored whole.
      online: softmax of a forward pass; None in a backward pass.
      sums: row sums of a backward pass.
      causal: each query attends to keys up to its own position.
      signature: equal for bodies of equal computation.
    """

    members: tuple[Member, ...] = dataclasses.field(compare=False)
    labels: tuple[Labels, ...]
    sizes: tuple[int, ...]
    operands: int
    results: tuple[int, ...]
    key_label: int
    queries: frozenset[int]
    scores: frozenset[int]
    online: Online | None
    sums: tuple[RowSum, ...]
    causal: bool
    signature: Hashable
