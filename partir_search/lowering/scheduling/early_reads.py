"""Reads that the backward pass does not wait for, and should.

Nothing but the loss's value needs the logit of each token's label. XLA:TPU reads it at the very end
of the step now and then, and holds the logits until then, beside their gradient: a quarter more
memory in a LLaMA of one layer whose vocabulary is tiled. So reading much for little is tied to what
the backward pass needs next: it comes first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from partir_search.ir.rule import OpRule
from partir_search.lowering.local_ir import Block, LocalOp, Reshard
from partir_search.lowering.local_value import LocalValue
from partir_search.lowering.traits import NEUTRAL, LoweringTraits


def read_early(
    block: Block, rules: Sequence[OpRule], traits: LoweringTraits = NEUTRAL
) -> dict[int, LocalValue]:
    """By position of a step of the forward pass that reads much for little, and for which nothing
    in the backward pass waits: an operand that the backward pass uses later, or what it was moved
    from (labels that are gathered once for each pass).
    """
    moved = _made_by_moves(block)
    needed: set[int] = set()  # by the backward pass, somehow
    later: set[int] = set()  # by steps of the backward pass themselves
    found: dict[int, LocalValue] = {}
    for i in range(len(block.steps) - 1, -1, -1):
        item = block.steps[i]
        if not isinstance(item, LocalOp):
            if item.target.id in needed:
                needed.add(item.source.id)
            if item.target.id in later:
                later.add(item.source.id)
            continue
        ins = [x for x in item.ins if isinstance(x, LocalValue)]
        if item.op.backward:
            later.update(x.id for x in ins)
            needed.update(x.id for x in ins)
        elif any(out.id in needed for out in item.outs):
            needed.update(x.id for x in ins)
        elif not item.blocks and not rules[item.op.id].elementwise:
            much = traits.early_read_ratio * sum(out.nbytes for out in item.outs)
            known = [x for local in ins for x in _before(local, moved) if x.id in later]
            small = [x for x in known if x.nbytes <= much]
            if small and max(x.nbytes for x in ins) > much:
                found[i] = min(reversed(small), key=lambda x: x.nbytes)
    return found


def _made_by_moves(block: Block) -> dict[int, LocalValue]:
    """Source of each slot that a move made first: a value that is moved there and back is in one
    slot twice, and was in the slot before it left.
    """
    moved: dict[int, LocalValue] = {}
    seen: set[int] = set()
    for item in block.steps:
        if isinstance(item, Reshard):
            if item.target.id not in seen:
                moved[item.target.id] = item.source
            seen.update((item.source.id, item.target.id))
        else:
            seen.update(x.id for x in (*item.ins, *item.outs) if isinstance(x, LocalValue))
    return moved


def _before(local: LocalValue, moved: Mapping[int, LocalValue]) -> Iterator[LocalValue]:
    """The slot, and what moves made it of."""
    yield local
    while local.id in moved:
        local = moved[local.id]
        yield local
