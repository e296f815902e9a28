"""Barriers against common-subexpression elimination.

A regather repeats an earlier gather. If the compiler merged the two, the gathered copy would live
from the forward pass to the backward pass. XLA:TPU and XLA:GPU honour an `optimization_barrier`;
XLA:CPU drops barriers before common-subexpression elimination.
"""

from __future__ import annotations

from collections.abc import Set

from partir_search.ir.core import Literal
from partir_search.lowering.local_ir import LocalOp, LocalProgram, LocalRegion, Reshard
from partir_search.lowering.local_value import LocalValue
from partir_search.lowering.reshard_steps import AllGather, Permute
from partir_search.lowering.scheduling.marks import Marks, mark_regions
from partir_search.lowering.traits import LoweringTraits


def prevent_cse(program: LocalProgram, traits: LoweringTraits) -> LocalProgram:
    """Puts the source of each regather behind a barrier, with a second operand of the reader.

    The second operand delays the regather until the reader can run. A barrier forces its values
    into memory. Two kinds of operands are therefore not used: constants (zeros for a scatter), as a
    regather need not wait for zeros, and elementwise results, as XLA:TPU fuses an elementwise op
    into each reader (the gradient of logits, into two products). Their slices count as they do.
    """
    rules = program.partition.rules

    def find(body: LocalRegion, outer: Set[int]) -> Marks:
        marks: dict[int, dict[str, tuple[LocalValue, ...]]] = {}
        defined = {*outer, *(local.id for local in body.args)}
        constant: set[int] = set()  # results of ops without operands, and of ops on such results
        fused: set[int] = set()  # elementwise results
        for at, item in enumerate(body.steps):
            if isinstance(item, LocalOp):
                made = {local.id for local in item.outs}
                arrays = (x for x in item.ins if isinstance(x, LocalValue) and x.value.type.shape)
                if not item.regions and all(x.id in constant for x in arrays):
                    constant |= made
                if rules[item.op.id].elementwise:
                    fused |= made
            elif item.regather and isinstance(item.step, (AllGather, Permute)):
                marks[at] = {"barrier": _companion(body, at, item, defined, constant, fused)}
            if isinstance(item, Reshard) and not item.step.communicates:
                for kind in (constant, fused):
                    kind |= {item.target.id} if item.source.id in kind else set()
            defined.update(local.id for local in item.outs)
        return marks

    return mark_regions(program, find)


def _companion(
    body: LocalRegion,
    at: int,
    regather: Reshard,
    defined: Set[int],
    constant: Set[int],
    fused: Set[int],
) -> tuple[LocalValue, ...]:
    """Operand to put behind the barrier; () if none fits."""
    later = (x for x in body.steps[at:] if isinstance(x, LocalOp) and x.op is regather.op)
    user = next(later, None)
    for operand in user.ins if user else ():
        if isinstance(operand, Literal) or operand.id not in defined:
            continue
        if operand.value is regather.source.value:  # the earlier copy, which is not to be kept
            continue
        if operand.value.type.shape and operand.id not in constant:
            return () if operand.id in fused else (operand,)
    return ()
