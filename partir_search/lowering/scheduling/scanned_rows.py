"""Layouts of stacks that a loop over time reads row by row.

XLA:TPU may lay out the stack [t, b, d] of a product or a transposition with t in the lanes: every
iteration then reads lanes of 128 rows for one row (docs/evidence/traits.md: `pins_scanned_rows`).
The pass pins these stacks to the order of their dims; stacks of scans and of layers' weights are
left to the compiler.
"""

from __future__ import annotations

from collections.abc import Set

from partir_search.ir.role import Role
from partir_search.lowering.local_ir import LocalOp, LocalProgram, LocalRegion, Reshard
from partir_search.lowering.local_value import LocalValue
from partir_search.lowering.scheduling.marks import Marks, mark_regions
from partir_search.lowering.traits import LoweringTraits
from partir_search.rules.control_flow import ACCUMULATES

_MAKERS = frozenset({Role.DOT, Role.TRANSPOSITION})


def pin_scanned_rows(program: LocalProgram, traits: LoweringTraits) -> LocalProgram:
    """Pins stacks of products and transpositions to the order of their dims."""
    if not traits.pins_scanned_rows:
        return program

    def find(region: LocalRegion, _: Set[int]) -> Marks:
        made = {local.id: at for at, item in enumerate(region.steps) for local in item.outs}
        # A value resharded to another layout and back is one local value, made twice.
        first = {x.id: at for at, item in reversed([*enumerate(region.steps)]) for x in item.outs}
        found: dict[int, list[LocalValue]] = {}
        for item in region.steps:
            for stack in _stacks(program, item):
                if stack.id in made and _is_arranged(program, region, first, stack):
                    pinned = found.setdefault(made[stack.id], [])
                    pinned.extend(() if stack in pinned else (stack,))
        return {at: {"in_order": tuple(stacks)} for at, stacks in found.items()}

    return mark_regions(program, find)


def _stacks(program: LocalProgram, item: object) -> list[LocalValue]:
    """Stacks [t, b, d] that a scan reads."""
    if not isinstance(item, LocalOp) or program.partition.rules[item.op.id].role is not Role.SCAN:
        return []
    params = item.op.params
    if params.get(ACCUMULATES):
        return []
    first = int(params["num_consts"]) + int(params["num_carry"])
    return [x for x in item.ins[first:] if isinstance(x, LocalValue) and len(x.shape) == 3]


def _is_arranged(
    program: LocalProgram, region: LocalRegion, made: dict[int, int], stack: LocalValue
) -> bool:
    """True for a result of a product or a transposition, or of a collective on such a result.

    Args:
      made: position of the first instruction that makes a local value, by id.
    """
    maker = region.steps[made[stack.id]]
    while isinstance(maker, Reshard) and maker.source.id in made:
        maker = region.steps[made[maker.source.id]]
    return isinstance(maker, LocalOp) and program.partition.rules[maker.op.id].role in _MAKERS
