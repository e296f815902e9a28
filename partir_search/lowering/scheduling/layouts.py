"""Layouts in memory that a compiler is not left to choose.

*Updates.* The gradient of a weight is the transpose of a product as often as not. XLA:TPU then
works out the whole update the other way round: it copies a shard of the weight and of its moments
to the gradient's layout when the step begins, holds the copies through the step and copies all
three back when it ends. So a gradient is held to the layout of the state where it takes the state's
shape. By XLA:TPU's cycles and memory for v5e: a mixture of experts under
`BP(data+model)+Z3(model)` 24.0 to 20.8 ms, 1.92 to 1.51 GB, a LLaMA under `BP(data+model)+Z3(data)`
19.7 to 17.8 ms, 1.85 to 1.59 GB; where nothing was copied it changes nothing.

*Look-ups.* They take rows and make rows. XLA:TPU lays out what is worked out of them by columns if
one product likes that better, and transposes each array of edges of a graph network on its way
from and to the nodes. Held to rows where they are made, they stay so: `BP(data)` on v5e 85.8 to
69.2 ms, 4.30 to 3.95 GB, edges tiled on both axes 21.3 to 17.9 ms; look-ups of tokens change
little.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint

from partir_search.ir.core import Shape
from partir_search.ir.rule import OpRule
from partir_search.lowering.local_ir import LocalOp, LocalProgram, Reshard
from partir_search.lowering.local_value import LocalValue
from partir_search.lowering.traits import NEUTRAL, LoweringTraits


def held_by_rows(program: LocalProgram, traits: LoweringTraits) -> dict[int, list[LocalValue]]:
    """By position of a step of the body, those of its results that are to be laid out by rows."""
    found = meetings(program, traits) if traits.pins_update_layouts else {}
    for at, slots in lookups(program, traits).items() if traits.pins_lookup_layouts else ():
        found[at] = list(dict.fromkeys((*found.get(at, ()), *slots)))
    return found


def lookups(program: LocalProgram, traits: LoweringTraits = NEUTRAL) -> dict[int, list[LocalValue]]:
    """By position of a step of the body, those of its results that an array of numbers says where
    to find.
    """
    rules = program.partition.rules
    found: dict[int, list[LocalValue]] = {}
    for at, item in enumerate(program.body.steps):
        if isinstance(item, LocalOp) and rules[item.op.id].looks_up and _by_array(item):
            slots = [s for s in item.outs if _fills_tiles(s.shape, traits) and _floats(s)]
            if slots:
                found[at] = slots
    return found


def meetings(
    program: LocalProgram, traits: LoweringTraits = NEUTRAL
) -> dict[int, list[LocalValue]]:
    """By position of a step of the body, those of its results that from there on are worked on
    elementwise in the shape of donated state, until they update it.
    """
    block, module = program.body, program.partition.module
    made = {s.id: i for i, item in enumerate(block.steps) for s in _results(item)}
    found: dict[int, list[LocalValue]] = {}
    seen: set[int] = set()

    def visit(local: LocalValue, shape: Shape) -> None:
        if local.id in seen or local.id not in made or local.shape != shape:
            return
        seen.add(local.id)
        at = made[local.id]
        sources = _walked(block.steps[at], shape, program.partition.rules)
        if sources is None:
            found.setdefault(at, []).append(local)
        for source in sources or ():
            visit(source, shape)

    for argument, result in module.ties:
        local = block.results[result]
        if argument not in module.donated or not isinstance(local, LocalValue):
            continue
        while local.id in made and isinstance(move := block.steps[made[local.id]], Reshard):
            local = move.source  # of ZeRO's new parameters the shard, before it is gathered
        if _fills_tiles(local.shape, traits) and _floats(local):
            visit(local, local.shape)
    return found


def _fills_tiles(shape: Shape, traits: LoweringTraits) -> bool:
    """Tells whether the compiler lays out an argument of this shape row by row. Others, as heads of
    64, are turned to fill tiles.
    """
    lanes, sublanes = traits.row_major_lane_elements, traits.row_major_sublane_elements
    return len(shape) > 1 and shape[-1] % lanes == 0 and shape[-2] % sublanes == 0


def _floats(local: LocalValue) -> bool:
    return jnp.issubdtype(local.value.type.dtype, jnp.floating)


def _by_array(item: LocalOp) -> bool:
    """True if a lookup takes many rows, and not one stretch that begins at some number."""
    return any(x.type.shape and jnp.issubdtype(x.type.dtype, jnp.integer) for x in item.op.operands)


def row_major(x: Any) -> Any:
    """The array laid out row by row."""
    return with_layout_constraint(x, Layout(tuple(range(x.ndim))))


def _results(item: LocalOp | Reshard) -> tuple[LocalValue, ...]:
    return (item.target,) if isinstance(item, Reshard) else item.outs


def _walked(
    item: LocalOp | Reshard, shape: Shape, rules: Sequence[OpRule]
) -> list[LocalValue] | None:
    """Slots that an elementwise step reads; None if of another kind, or if it reads transposed."""
    if isinstance(item, Reshard) or item.blocks or not rules[item.op.id].elementwise:
        return None
    rule = rules[item.op.id]
    slots = [
        (x, dims)
        for x, dims in zip(item.ins, rule.operands, strict=True)
        if isinstance(x, LocalValue)
    ]
    same = all(
        dims == rule.results[0] if s.shape == shape else math.prod(s.shape) < math.prod(shape)
        for s, dims in slots
    )
    return [s for s, _ in slots] if same else None
