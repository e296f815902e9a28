"""Cumulative ops (cumsum, cummax, ...) in two levels: within blocks of a dim, and over blocks.

With a dim of n elements as t blocks of n / t elements, devices compute their own blocks, and only
the t totals move. t is the largest number of tiles of the dim on the mesh with at least
`MIN_BLOCK_ELEMENTS` elements: the second level costs a pass over the array.
"""

from __future__ import annotations

from partir_search.ir.core import Module, Op, Value
from partir_search.ir.mesh import MeshShape
from partir_search.passes.block_counts import in_blocks, most_blocks
from partir_search.rules.block_scans import is_cumulative, joined_blocks
from partir_search.rules.construct import NewOp, like, reshaped, sliced

MIN_BLOCK_ELEMENTS = 32


def with_block_scans(
    module: Module, mesh: MeshShape, min_elements: int = MIN_BLOCK_ELEMENTS
) -> Module:
    """The module with cumulative ops in blocks, where the mesh tiles their dims.

    Args:
      min_elements: fewest elements of a block.
    """
    blocks = {op.id: _blocks(op, mesh, min_elements) for op in module.ops if is_cumulative(op)}
    return in_blocks(module, blocks, _written)


def _blocks(op: Op, mesh: MeshShape, min_elements: int) -> int:
    """Number of blocks of a cumulative op's dim; 0 if the mesh cannot tile the dim."""
    if not isinstance(op.operands[0], Value):
        return 0
    return most_blocks(op.operands[0].type.shape[op.params["axis"]], mesh, min_elements)


def _written(op: Op, count: int) -> list[Op]:
    """Cumulative op within `count` blocks, and its combination with the blocks' totals."""
    (x,), (result,) = op.operands, op.results
    axis, shape = op.params["axis"], x.type.shape
    size = shape[axis] // count
    split = (*shape[:axis], count, size, *shape[axis + 1 :])
    last = 0 if op.params["reverse"] else size - 1
    starts = [last if d == axis + 1 else 0 for d in range(len(split))]
    ends = [last + 1 if d == axis + 1 else n for d, n in enumerate(split)]
    made: list[Op] = []

    def put(new: NewOp, stem: str) -> Value:
        value = Value(-1, new.type, f"{result.name}_{stem}")
        made.append(new.at(op, value))
        return value

    within = put(like(op, [put(reshaped(x, split), "blocks")], split, axis=axis + 1), "within")
    column = put(sliced(within, starts, ends), "ends")
    totals = put(reshaped(column, (*shape[:axis], count, *shape[axis + 1 :])), "totals")
    joined = put(joined_blocks(op, within, totals), "joined")
    made.append(reshaped(joined, shape).at(op, result))
    return made
