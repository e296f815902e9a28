"""ParallelBlocks: ops able to follow the tiling of one product (CFP, algorithm 1).

Seeds are the products of activations with weights in the forward pass, in program order. A reader
of a block's values joins the block; a product of values of several blocks joins the blocks
(queries, keys and values, by the products of attention). Ops of the backward pass are in the
blocks of their forward ops and not counted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from partir_search.ir.analysis.union_find import UnionFind
from partir_search.ir.core import Module, Op, walk_regions
from partir_search.ir.printing.paths import op_paths
from partir_search.ir.printing.weights import WeightReads
from partir_search.ir.rule import OpRule


@dataclasses.dataclass(frozen=True, slots=True)
class ParallelBlock:
    """Ops with tilings implied by the tiling of one product.

    Attributes:
      path: block of the first product: scopes, or modules of the weights read.
      ops: ids of the ops, in program order.
      products: number of products with weights.
      options: most factors for the loop of an axis in one of the products, plus one for no loop.
    """

    path: str
    ops: tuple[int, ...]
    products: int
    options: int


def parallel_blocks(module: Module, rules: Sequence[OpRule]) -> tuple[ParallelBlock, ...]:
    """ParallelBlocks of a module, regions included, by first op."""
    reads = WeightReads(module).modules
    merged = UnionFind(len(module.ops))
    block_of: dict[int, int] = {}  # by value id, the seed of its block
    ops_of: dict[int, int] = {}  # by op id, the seed of its block
    for region in walk_regions(module.body):
        for op in region.ops:
            if op.backward or op.regions:
                continue
            seeds = [block_of[v.id] for _, v in op.inputs() if v.id in block_of]
            contracts = rules[op.id].contracts
            if contracts and op.id in reads:
                seeds = [op.id]
            elif not seeds:
                continue
            elif contracts:
                for seed in seeds[1:]:
                    merged.merge(seeds[0], seed)
            ops_of[op.id] = seeds[0]
            block_of.update((r.id, seeds[0]) for r in op.results)
    members: dict[int, list[Op]] = {}
    for op_id, seed in ops_of.items():
        members.setdefault(merged.find(seed), []).append(module.ops[op_id])
    paths = op_paths(module)
    return tuple(
        _block(sorted(ops, key=lambda op: op.id), rules, {*ops_of.values()}, paths)
        for ops in members.values()
    )


def _block(
    ops: Sequence[Op],
    rules: Sequence[OpRule],
    seeds: set[int],
    paths: Sequence[tuple[str, ...]],
) -> ParallelBlock:
    products = [op for op in ops if op.id in seeds]
    factors = max(sum(n > 1 for n in rules[op.id].sizes) for op in products)
    path = "/".join(paths[products[0].id])
    return ParallelBlock(path, tuple(op.id for op in ops), len(products), factors + 1)
