"""Blockwise forms of ops: attention works on one block of keys after the other."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from partir_search.ir.core import Op
from partir_search.ir.local_context import LocalContext

Where = Mapping[int, tuple[Any, int]]  # by label: which block, of how many
Turn = Callable[[LocalContext, Op, Sequence[Any], Any, Where], tuple[Any, Sequence[Any]]]
Finish = Callable[[LocalContext, Op, Sequence[Any], Any, Where], Sequence[Any]]


@dataclasses.dataclass(frozen=True, slots=True)
class Blockwise:
    """Blockwise form of an op: one block of a factor after the other.

    Attributes:
      factor: that the blocks are of; the op itself never loops over it.
      along: the factor in whose place it is: of the queries, where blocks are of keys.
      passing: operands that hold blocks of it and nothing of what a device keeps.
      returning: results that hold blocks of it: sums that travel with the blocks.
      scratch: bytes, at each point of some factors, of what is there during a turn only.
      scratch_factors: these factors.
      causal: whether a block comes to nothing for blocks of `along` before it.
      turn: (context, op, operands, state or None, where) to the state after it and the results in
        `returning` of this block. `where` tells, by factor, which block of how many.
      finish: (context, op, operands, state, where) to all results; what it makes of those in
        `returning` is of no use.
    """

    factor: int
    along: int
    passing: tuple[int, ...]
    returning: tuple[int, ...]
    scratch: float
    scratch_factors: tuple[int, ...]
    causal: bool
    turn: Turn
    finish: Finish
