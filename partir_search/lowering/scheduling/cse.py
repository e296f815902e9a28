"""Barriers against common-subexpression elimination.

A regather repeats an earlier gather. Merged with the earlier one by the compiler, the gathered copy
would live from the forward pass to the backward pass. XLA:TPU and GPU honour an
`optimization_barrier` (XLA:CPU drops barriers before it merges).
"""

from __future__ import annotations

from collections.abc import Set

from partir_search.ir.core import Literal
from partir_search.lowering.local_ir import Block, LocalOp, LocalProgram, Reshard
from partir_search.lowering.local_value import LocalValue
from partir_search.lowering.reshard_steps import AllGather, Permute
from partir_search.lowering.scheduling.marks import Marks, mark_blocks
from partir_search.lowering.traits import LoweringTraits


def block_cse(program: LocalProgram, traits: LoweringTraits) -> LocalProgram:
    """Puts the source of each regather behind a barrier, with another operand of the op that the
    regather is made for, if the operand delays the regather at no cost.

    An operand made of no array (zeros for a scatter, say) delays nothing, and would be stored. An
    elementwise result would be stored as well: XLA:TPU fuses the logits' gradient into both
    products that read the gradient, unless a barrier holds it.
    """
    rules = program.partition.rules

    def find(block: Block, outer: Set[int]) -> Marks:
        marks: dict[int, dict[str, tuple[LocalValue, ...]]] = {}
        defined = {*outer, *(local.id for local in block.args)}
        constant: set[int] = set()  # results of ops without array operands
        fused: set[int] = set()  # elementwise results
        for at, item in enumerate(block.steps):
            if isinstance(item, LocalOp):
                made = {local.id for local in item.outs}
                arrays = (x for x in item.ins if isinstance(x, LocalValue) and x.value.type.shape)
                if not item.blocks and next(arrays, None) is None:
                    constant |= made
                if rules[item.op.id].elementwise:
                    fused |= made
            elif item.regather and isinstance(item.step, (AllGather, Permute)):
                marks[at] = {"barrier": _companion(block, at, item, defined, constant, fused)}
            defined.update(local.id for local in item.outs)
        return marks

    return mark_blocks(program, find)


def _companion(
    block: Block,
    at: int,
    regather: Reshard,
    defined: Set[int],
    constant: Set[int],
    fused: Set[int],
) -> tuple[LocalValue, ...]:
    """The operand to put behind the barrier; () if none fits."""
    later = (x for x in block.steps[at:] if isinstance(x, LocalOp) and x.op is regather.op)
    user = next(later, None)
    for operand in user.ins if user else ():
        if isinstance(operand, Literal) or operand.id not in defined or operand is regather.source:
            continue
        if operand.value.type.shape and operand.id not in constant:
            return () if operand.id in fused else (operand,)
    return ()
