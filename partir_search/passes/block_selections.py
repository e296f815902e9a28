"""Selections (argmax, argmin, top_k) along a dim in two steps: within tiles, and from their best.

With a dim of n elements as t blocks of n / t elements, devices select among their own blocks, and
only their candidates move: the accuracy of a model whose vocabulary is sharded, the features of a
sparse autoencoder, the nearest of many codes.
"""

from __future__ import annotations

import dataclasses

from partir_search.ir.core import Module, Op, Value
from partir_search.ir.mesh import MeshShape
from partir_search.passes.block_counts import in_blocks, most_blocks
from partir_search.rules.block_selections import (
    best_of_all,
    candidates,
    selected_dim,
    selected_elements,
)
from partir_search.rules.construct import reshaped

MIN_BLOCK_ELEMENTS = 256
"""Fewest elements of a block: candidates are few beside the elements they are selected from."""

MIN_ELEMENTS_PER_CANDIDATE = 128
"""Fewest elements of a block for each selected element: XLA:TPU sorts dims of fewer than 65."""


def with_block_selections(
    module: Module,
    mesh: MeshShape,
    min_elements: int = MIN_BLOCK_ELEMENTS,
    per_candidate: int = MIN_ELEMENTS_PER_CANDIDATE,
) -> Module:
    """The module with selections in blocks, for dims tiled by the mesh.

    Args:
      min_elements: fewest elements of a block.
      per_candidate: fewest elements of a block for each selected element.
    """
    blocks: dict[int, int] = {}
    for op in module.ops:
        dim = selected_dim(op)
        if dim >= 0 and isinstance(op.operands[0], Value):
            least = max(min_elements, per_candidate * selected_elements(op))
            blocks[op.id] = most_blocks(op.operands[0].type.shape[dim], mesh, least)
    return in_blocks(module, blocks, _in_two_steps)


def _in_two_steps(op: Op, count: int) -> list[Op]:
    """Selection among `count` blocks of a dim."""
    (x,), last = op.operands, op.results[-1]
    dim, shape = selected_dim(op), x.type.shape
    split = (*shape[:dim], count, shape[dim] // count, *shape[dim + 1 :])
    view = reshaped(x, split)
    blocks = Value(-1, view.type, f"{last.name}_blocks")
    kept = (*shape[:dim], count, *shape[dim + 1 :])
    if len(op.results) > 1:
        kept = (*kept, selected_elements(op))
    best, at = (
        Value(-1, dataclasses.replace(kind, shape=kept), f"{last.name}_{stem}")
        for kind, stem in ((x.type, "best"), (last.type, "at"))
    )
    return [
        view.at(op, blocks),
        candidates(op, blocks, (best, at)),
        best_of_all(op, (best, at), op.results),
    ]
