"""Reads of large values in the forward pass, scheduled before the backward pass.

Only the loss needs the logit of each token's label. XLA:TPU may read the labels' logits at the end
of the step and keep all logits alive beside their gradient: a quarter more memory in a LLaMA of one
layer with a tiled vocabulary. The pass puts the read before the next readers, in the backward pass,
of an operand of the read. A read without small operands, an argmax for the accuracy, is put before
the backward pass reads a further small result of the same large value, a sum of the softmax.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set

from partir_search.ir.rule import OpRule
from partir_search.lowering.local_ir import LocalOp, LocalProgram, LocalRegion, Reshard
from partir_search.lowering.local_value import LocalValue
from partir_search.lowering.scheduling.marks import Marks, mark_regions
from partir_search.lowering.traits import LoweringTraits


def hoist_early_reads(program: LocalProgram, traits: LoweringTraits) -> LocalProgram:
    """Puts early reads before the readers of one of their operands in the backward pass.

    Early reads are ops of the forward pass with large operands and small results
    (`LoweringTraits.early_read_ratio`) and without influence on the backward pass.
    """

    def find(body: LocalRegion, _: Set[int]) -> Marks:
        early = early_reads(body, program.partition.rules, traits)
        return {
            at: {"before": (*(body.steps[at].scheduling.before or ()), operand)}
            for at, operand in early.items()
        }

    return mark_regions(program, find)


def early_reads(
    body: LocalRegion, rules: Sequence[OpRule], traits: LoweringTraits
) -> dict[int, LocalValue]:
    """Smallest operand with a reader in the backward pass, by position of an early read.

    An operand resharded for each pass (labels, gathered twice) stands for the reshard's source.
    Without small operands, the smallest value to which the forward pass has reduced the same stored
    value instead.
    """
    sources = _first_sources(body)
    stored, reduced = _stored_values(body, rules, traits.early_read_ratio)
    needed: set[int] = set()  # read by the backward pass, directly or through further instructions
    later: set[int] = set()  # read by instructions of the backward pass
    found: dict[int, LocalValue] = {}
    for at in range(len(body.steps) - 1, -1, -1):
        item = body.steps[at]
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
        elif not item.regions and not rules[item.op.id].elementwise:
            most = traits.early_read_ratio * sum(out.nbytes for out in item.outs)
            large = max(ins, key=lambda x: x.nbytes, default=None)
            if large is None or large.nbytes <= most:
                continue
            known = [x for local in ins for x in _origins(local, sources)]
            if all(x.nbytes > most for x in known):
                known = [x for i, x in reduced.get(stored.get(large.id, large.id), ()) if i < at]
            small = [x for x in known if x.nbytes <= most and x.id in later]
            if small:
                found[at] = min(reversed(small), key=lambda x: x.nbytes)
    return found


def _stored_values(
    body: LocalRegion, rules: Sequence[OpRule], ratio: float
) -> tuple[dict[int, int], dict[int, list[tuple[int, LocalValue]]]]:
    """Large stored values, and small values to which the forward pass reduces each of them.

    Args:
      ratio: bytes of a value over those of a reduction, at least.

    Returns:
      By id of a result of elementwise ops and moves, the id of their largest stored operand.
      By id of a stored value, (position, value) of the small results of its readers, resharded and
        as operands of elementwise ops.
    """
    stored: dict[int, int] = {}
    reduced: dict[int, int] = {}  # by id of a small result, the id of the stored operand
    found: dict[int, list[tuple[int, LocalValue]]] = {}
    for at, item in enumerate(body.steps):
        if isinstance(item, Reshard):
            if item.source.id in reduced:
                reduced[item.target.id] = reduced[item.source.id]
                found[reduced[item.source.id]].append((at, item.target))
            continue
        ins = [x for x in item.ins if isinstance(x, LocalValue)]
        if not ins or item.op.backward or item.regions:
            continue
        rule, large = rules[item.op.id], max(ins, key=lambda x: x.nbytes)
        made, source = sum(x.nbytes for x in item.outs), stored.get(large.id, large.id)
        if large.id in reduced and rule.elementwise:
            source = reduced[large.id]
        elif rule.elementwise or (rule.moves and made == large.nbytes):
            stored.update((x.id, source) for x in item.outs)
            continue
        elif ratio * made >= large.nbytes:
            continue
        reduced.update((x.id, source) for x in item.outs)
        found.setdefault(source, []).extend((at, x) for x in item.outs)
    return stored, found


def _first_sources(body: LocalRegion) -> dict[int, LocalValue]:
    """Source of the reshard that defines a local value, by id.

    Local values defined before the reshard are left out: resharded to a layout and back, a value is
    one local value with two definitions, the first before both reshards.
    """
    sources: dict[int, LocalValue] = {}
    seen: set[int] = set()
    for item in body.steps:
        if isinstance(item, Reshard):
            if item.target.id not in seen:
                sources[item.target.id] = item.source
            seen.update((item.source.id, item.target.id))
        else:
            seen.update(x.id for x in (*item.ins, *item.outs) if isinstance(x, LocalValue))
    return sources


def _origins(local: LocalValue, sources: Mapping[int, LocalValue]) -> Iterator[LocalValue]:
    """A local value, then the chain of reshard sources, last to first."""
    yield local
    while local.id in sources:
        local = sources[local.id]
        yield local
