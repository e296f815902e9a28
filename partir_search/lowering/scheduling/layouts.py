"""Layouts in memory prescribed by the program.

*Updates.* The gradient of a weight is often the transpose of a product. XLA:TPU then computes the
whole update transposed: a shard of the weight and of the moments is copied to the gradient's layout
at the start of the step, kept through the step, and copied back at the end
(docs/evidence/traits.md: `pins_update_layouts`). The pass pins the gradient to the state's layout
at the first value with the state's shape.

*Look-ups* read and make rows, and scatters read rows. XLA:TPU lays out results and updates by
columns if a product prefers columns, and transposes a graph network's arrays of edges between edges
and nodes (`pins_lookup_layouts`). The pass pins results of look-ups, and updates of scatters before
they are gathered, to rows. Rows of a few numbers, as scores of edges by heads, would take a whole
tile row each, as would all values computed from the rows: narrow look-ups are pinned to columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import jax.numpy as jnp

from partir_search.ir.core import Shape
from partir_search.ir.role import Role
from partir_search.ir.rule import OpRule
from partir_search.lowering.local_ir import LocalOp, LocalProgram, Reshard
from partir_search.lowering.local_value import LocalValue
from partir_search.lowering.scheduling.marks import mark_body
from partir_search.lowering.traits import LoweringTraits


def pin_update_layouts(program: LocalProgram, traits: LoweringTraits) -> LocalProgram:
    """Pins gradients to the row-major layout of the updated, donated state."""
    if not traits.pins_update_layouts:
        return program
    return _pinned(program, state_gradients(program, traits))


def pin_lookup_layouts(program: LocalProgram, traits: LoweringTraits) -> LocalProgram:
    """Pins look-ups to rows, or narrow ones to columns, and updates of scatters to rows."""
    if not traits.pins_lookup_layouts:
        return program
    narrow = {
        at: {"by_columns": tuple(columns)}
        for at, columns in narrow_lookups(program, traits).items()
    }
    looked_up = mark_body(_pinned(program, lookups(program, traits)), narrow)
    return _pinned(looked_up, scatter_updates(program, traits))


def _pinned(program: LocalProgram, found: Mapping[int, Sequence[LocalValue]]) -> LocalProgram:
    marks = {
        at: {
            "row_major": tuple(dict.fromkeys((*program.body.steps[at].scheduling.row_major, *rows)))
        }
        for at, rows in found.items()
    }
    return mark_body(program, marks)


def lookups(program: LocalProgram, traits: LoweringTraits) -> dict[int, list[LocalValue]]:
    """Results of look-ups of many rows, by position of the instruction in the body."""
    return _looked_up(program, lambda shape: _whole_rows(shape, traits))


def narrow_lookups(program: LocalProgram, traits: LoweringTraits) -> dict[int, list[LocalValue]]:
    """Results of look-ups of rows that fill an eighth of a tile's lanes or less, of which columns
    fill whole tiles, by position of the instruction in the body.
    """
    lanes = traits.row_major_lane_elements

    def narrow(shape: Shape) -> bool:
        return len(shape) > 1 and 1 < shape[-1] <= lanes // 8 and shape[-2] % lanes == 0

    return _looked_up(program, narrow)


def _looked_up(
    program: LocalProgram, of_shape: Callable[[Shape], bool]
) -> dict[int, list[LocalValue]]:
    rules = program.partition.rules
    found: dict[int, list[LocalValue]] = {}
    for at, item in enumerate(program.body.steps):
        if isinstance(item, LocalOp) and rules[item.op.id].is_table_lookup and _by_array(item):
            rows = [x for x in item.outs if of_shape(x.shape) and _floats(x)]
            if rows:
                found[at] = rows
    return found


def scatter_updates(program: LocalProgram, traits: LoweringTraits) -> dict[int, list[LocalValue]]:
    """Updates of scatters into rows, by position of the making instruction in the body."""
    body, rules = program.body, program.partition.rules
    made = {s.id: i for i, item in enumerate(body.steps) for s in item.outs}
    found: dict[int, list[LocalValue]] = {}
    for item in body.steps:
        if not isinstance(item, LocalOp) or rules[item.op.id].role is not Role.SCATTER:
            continue
        local, dims = item.ins[-1], rules[item.op.id].operands[-1]
        if dims[-1:] != rules[item.op.id].results[0][-1:] or not isinstance(local, LocalValue):
            continue
        while local.id in made and isinstance(reshard := body.steps[made[local.id]], Reshard):
            local = reshard.source
        if local.id in made and _whole_rows(local.shape, traits) and _floats(local):
            found.setdefault(made[local.id], []).append(local)
    return found


def state_gradients(program: LocalProgram, traits: LoweringTraits) -> dict[int, list[LocalValue]]:
    """Gradients with the shape of donated state, by position of the instruction in the body.

    Between gradient and state are only elementwise ops.
    """
    body, module = program.body, program.partition.module
    made = {s.id: i for i, item in enumerate(body.steps) for s in item.outs}
    found: dict[int, list[LocalValue]] = {}
    seen: set[int] = set()

    def visit(local: LocalValue, shape: Shape) -> None:
        if local.id in seen or local.id not in made or local.shape != shape:
            return
        seen.add(local.id)
        at = made[local.id]
        sources = _elementwise_operands(body.steps[at], shape, program.partition.rules)
        if sources is None:
            found.setdefault(at, []).append(local)
        for source in sources or ():
            visit(source, shape)

    for argument, result in module.ties:
        local = body.results[result]
        if argument not in module.donated or not isinstance(local, LocalValue):
            continue
        while local.id in made and isinstance(reshard := body.steps[made[local.id]], Reshard):
            local = reshard.source  # for ZeRO, the shard of the new parameter before the gather
        if _fills_tiles(local.shape, traits) and _floats(local):
            visit(local, local.shape)
    return found


def _fills_tiles(shape: Shape, traits: LoweringTraits) -> bool:
    """True if the compiler lays out arguments of the shape row by row.

    Arguments with partly filled tiles, as heads of 64, are transposed instead.
    """
    lanes, sublanes = traits.row_major_lane_elements, traits.row_major_sublane_elements
    return len(shape) > 1 and shape[-1] % lanes == 0 and shape[-2] % sublanes == 0


def _whole_rows(shape: Shape, traits: LoweringTraits) -> bool:
    """True if rows fill whole tiles; a dim of one row lies in tiles of one sublane."""
    if len(shape) < 2:
        return False
    sublanes = traits.row_major_sublane_elements if shape[-2] == 1 else shape[-2]
    return _fills_tiles((sublanes, shape[-1]), traits)


def _floats(local: LocalValue) -> bool:
    return jnp.issubdtype(local.value.type.dtype, jnp.floating)


def _by_array(item: LocalOp) -> bool:
    """True for a look-up of many rows, False for a slice at one position."""
    return any(x.type.shape and jnp.issubdtype(x.type.dtype, jnp.integer) for x in item.op.operands)


def _elementwise_operands(
    item: LocalOp | Reshard, shape: Shape, rules: Sequence[OpRule]
) -> list[LocalValue] | None:
    """Local values read by an elementwise op; None for ops of any further kind or transposition."""
    if isinstance(item, Reshard) or item.regions or not rules[item.op.id].elementwise:
        return None
    rule = rules[item.op.id]
    operands = [
        (x, dims)
        for x, dims in zip(item.ins, rule.operands, strict=True)
        if isinstance(x, LocalValue)
    ]
    same = all(
        dims == rule.results[0] if s.shape == shape else math.prod(s.shape) < math.prod(shape)
        for s, dims in operands
    )
    return [s for s, _ in operands] if same else None
