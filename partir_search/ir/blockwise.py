"""Blockwise forms of ops: attention over one block of keys at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from partir_search.ir.core import Op
from partir_search.ir.local_context import LocalContext

Where = Mapping[int, tuple[Any, int]]  # by factor: index of the block, number of blocks
Turn = Callable[[LocalContext, Op, Sequence[Any], Any, Where], tuple[Any, Sequence[Any]]]
Finish = Callable[[LocalContext, Op, Sequence[Any], Any, Where], Sequence[Any]]


@dataclasses.dataclass(frozen=True, slots=True)
class Blockwise:
    """Form of an op that works on one block of a factor at a time.

    Attributes:
      factor: factor divided into blocks (keys); never looped over by the op itself.
      along: factor looped over on the axes of a ring (queries).
      passing: positions of operands that are blocks of `factor`, sent around the ring.
      returning: positions of results that are blocks of `factor`: sums that travel with the blocks.
      scratch: most bytes of temporaries of one turn, per point of `scratch_factors`.
      stored: likewise, bytes of the products' results.
      scratch_factors: factors of the temporaries' dims.
      causal: blocks of keys after a block of queries contribute nothing.
      turn: (context, op, operands, state or None, where) to the next state and the `returning`
        results of this block. `where` gives index and number of blocks by factor.
      finish: (context, op, operands, state, where) to all results; the `returning` ones are
        ignored.
    """

    factor: int
    along: int
    passing: tuple[int, ...]
    returning: tuple[int, ...]
    scratch: float
    stored: float
    scratch_factors: tuple[int, ...]
    causal: bool
    turn: Turn
    finish: Finish
