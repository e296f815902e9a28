"""Last kernels that read values of which consumers recompute functions.

A kernel with elementwise operands computes the operands itself, from stored values and copies.
A copy made by a gather for an activation function of the forward pass lives until the last kernel
of the backward pass to compute the function again. Where exponentials of a softmax are stored, in
f32 in place of the scores, no further kernel computes with the scores' other terms.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from partir_search.ir.analysis.def_use import DefUse
from partir_search.ir.core import Module, Value
from partir_search.ir.role import Role
from partir_search.ir.rule import NONE, OpRule
from partir_search.simulator.arrays import Floats, Ints


def recomputed_reads(
    module: Module, rules: Sequence[OpRule], stored: Sequence[int], width: Floats
) -> array[int]:
    """[values] position of the last kernel to compute with a recomputed value; NONE if stored.

    Args:
      rules: per op id.
      stored: [values] 1 for a stored value.
      width: [values] stored bytes as a multiple of the type's.
    """
    found = array("i", [NONE]) * len(module.values)
    ops, wide = module.body.ops, (width > 1.0).tolist()
    kept = {x for x in module.body.results if isinstance(x, Value)}  # some in buffers of arguments
    recomputed = [
        rules[op.id].elementwise and not any(stored[r.id] or r in kept for r in op.results)
        for op in ops
    ]
    for at, op in enumerate(ops) if any(wide) else ():
        ends = rules[op.id].role is Role.EXPONENTIAL  # consumers read the stored exponentials
        if recomputed[at] and not ends and any(wide[v.id] for _, v in op.inputs()):
            for r in op.results:
                wide[r.id] = True
    for at in range(len(ops) - 1, -1, -1):
        op, until = ops[at], at
        if recomputed[at]:
            results = [r.id for r in op.results]
            until = max([found[r] for r in results], default=at)
            if any(wide[r] for r in results):
                until = NONE
        for _, v in op.inputs():
            if until > found[v.id] and not stored[v.id]:
                found[v.id] = until
    for v in module.values:
        if wide[v.id]:
            found[v.id] = NONE
    return found


def last_read(v: Value, uses: DefUse, position: Ints, read_until: Sequence[int]) -> int:
    """Position of the last kernel computing with a stored value; NONE without readers.

    Args:
      position: [ops] of each op in its region.
      read_until: see `recomputed_reads`.
    """
    users = uses.users[v.id]
    ends = [read_until[r.id] for op in users for r in op.results]
    return max((*ends, *(int(position[op.id]) for op in users)), default=NONE)


def stored_source(v: Value, uses: DefUse, stored: Sequence[int]) -> Value | None:
    """The only stored value from which `v` is computed; None for several, or for more readers.

    Args:
      stored: [values] 1 for a stored value.
    """
    while not stored[v.id]:
        maker = uses.makers[v.id]
        if maker is None or uses.counts[v.id] != 1:
            return None
        if maker.regions or len(maker.inputs()) != 1 or len(maker.results) != 1:
            return None
        v = maker.inputs()[0][1]
    return v
