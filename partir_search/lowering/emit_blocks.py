"""Emission of turns of ring attention and of chunked ops (`lowering/ring_attention.py`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from partir_search.ir.blockwise import Blockwise, Where
from partir_search.ir.rule import Dims
from partir_search.lowering.device import Device
from partir_search.lowering.emit_window import coordinate
from partir_search.lowering.local_ir import AttentionTurn, ChunkedOp


def block_turn(
    device: Device,
    item: AttentionTurn | ChunkedOp,
    args: Sequence[Any],
    env: Mapping[int, Any],
) -> Sequence[Any]:
    """Results of a blockwise op after one block.

    Before the last turn, the running state takes the place of the first result that stays.
    """
    blockwise = device.partition.rules[item.op.id].blockwise
    assert blockwise is not None
    state_at = next((i for i in range(len(item.outs)) if i not in blockwise.returning), None)
    ring = item if isinstance(item, AttentionTurn) else None
    later = ring is not None and ring.turn > 0
    state = env[item.outs[state_at].id] if later and state_at is not None else None
    mesh, here = device.partition.mesh, jnp.int32(0)
    for axis in ring.axes if ring else ():
        here = here * mesh.sizes[axis] + coordinate(mesh, axis)
    make = _ZigzagTurn if ring and ring.zigzag else _Turn
    turn = make(device, item, blockwise, here)
    state, returned = turn.run(args, state)
    last = ring is None or ring.last
    outs: list[Any] = list(turn.finish(args, state)) if last else [() for _ in item.outs]
    for r, place in enumerate(blockwise.returning):
        outs[place] = returned[r] + env[item.received[r].id] if later else returned[r]
    if not last and state_at is not None:
        outs[state_at] = state
    return outs


class _Turn:
    """One turn with blocks in the order of the sequence.

    Attributes:
      size: number of devices along the ring.
      here: this device's position along the ring, an int32 scalar.
      block: number of the turn's block, an int32 scalar.
      moving: positions of operands whose blocks move.
      chunks: number of chunks of a block.
    """

    def __init__(
        self, device: Device, item: AttentionTurn | ChunkedOp, blockwise: Blockwise, here: Any
    ) -> None:
        self.device, self.op, self.blockwise = device, item.op, blockwise
        self.rule, self.chunks = device.partition.rules[item.op.id], item.chunks
        self.size, self.offset, self.moving = 1, 0, tuple[int, ...]()
        if isinstance(item, AttentionTurn):
            self.size, self.offset, self.moving = item.turns, item.offset, item.moving
        self.here, self.block = here, (here + self.offset) % self.size

    def run(self, args: Sequence[Any], state: Any) -> tuple[Any, Sequence[Any]]:
        """State after the block, and the returning results of the block."""
        where: Where = {self.blockwise.factor: (self.block, self.size)}
        return self.run_chunks(self.block_operands(args, where), state, where)

    def finish(self, args: Sequence[Any], state: Any) -> Sequence[Any]:
        """Results after the last block."""
        where: Where = {self.blockwise.factor: (self.block, self.size)}
        return self.blockwise.finish(
            self.device, self.op, self.block_operands(args, where), state, where
        )

    def block_operands(self, args: Sequence[Any], where: Where) -> list[Any]:
        """Operands at the block: moving operands as received, stationary ones sliced."""
        block, blocks = where[self.blockwise.factor]
        return [
            x
            if i in self.moving or self.blockwise.factor not in dims
            else _block_of(x, dims, self.blockwise.factor, block, blocks)
            for i, (x, dims) in enumerate(zip(args, self.rule.operands, strict=True))
        ]

    def run_chunks(
        self, args: Sequence[Any], state: Any, where: Where
    ) -> tuple[Any, Sequence[Any]]:
        """Runs the op on a block, chunk by chunk; chunks after the first run in a `lax.scan`."""
        blockwise, count = self.blockwise, self.chunks
        block, blocks = where[blockwise.factor]

        def one(state: Any, chunk: Any) -> tuple[Any, Sequence[Any]]:
            factor = blockwise.factor
            at = {**where, factor: (block * count + chunk, blocks * count)}
            operands = [
                _block_of(x, dims, blockwise.factor, chunk, count)
                if blockwise.factor in dims
                else x
                for x, dims in zip(args, self.rule.operands, strict=True)
            ]
            return blockwise.turn(self.device, self.op, operands, state, at)

        state, first = one(state, 0)
        if count == 1:
            return state, first
        state, rest = lax.scan(one, state, jnp.arange(1, count))
        returned = []
        for r, x, others in zip(blockwise.returning, first, rest, strict=True):
            dim = self.rule.results[r].index(blockwise.factor)
            others = jnp.moveaxis(others, 0, dim)
            shape = (*x.shape[:dim], (count - 1) * x.shape[dim], *x.shape[dim + 1 :])
            returned.append(jnp.concatenate([x, others.reshape(shape)], dim))
        return state, returned


class _ZigzagTurn(_Turn):
    """One turn with blocks of two chunks, one early and one late in the sequence.

    The state is one state per chunk of queries. A causal mask hides one of the four pairs of chunks
    on a device's own block, and two of the four on a received block.
    """

    def run(self, args: Sequence[Any], state: Any) -> tuple[Any, Sequence[Any]]:
        early, late = state or (None, None)
        if not self.offset:
            early, first = self.run_pair(args, early, 0, 0)
            late, second = self.run_pair(args, late, 1, 0)
            late, third = self.run_pair(args, late, 1, 1)
            three = zip(first, second, third, strict=True)
            returned = [self.join_chunks(a + b, c, r) for r, (a, b, c) in enumerate(three)]
            return (early, late), returned
        late, first = self.run_pair(args, late, 1, 0)
        # With a block of an earlier device, early queries attend to the block's early keys; with a
        # block of a later device, late queries to late keys. Both pairs have one shape: run once.
        before = self.block < self.here

        def select(x: Any, y: Any) -> Any:
            return jax.tree.map(lambda a, b: jnp.where(before, a, b), x, y)

        two = zip(self.chunk_operands(args, 0, 0), self.chunk_operands(args, 1, 1), strict=True)
        chosen = [select(a, b) for a, b in two]
        late_where = self.where(1, 1)
        where = {f: (select(a, late_where[f][0]), n) for f, (a, n) in self.where(0, 0).items()}
        chunk_state, second = self.run_chunks(chosen, select(early, late), where)
        nothing = [jnp.zeros_like(x) for x in second]
        returned = [
            self.join_chunks(a + jnp.where(before, b, z), jnp.where(before, z, b), r)
            for r, (a, b, z) in enumerate(zip(first, second, nothing, strict=True))
        ]
        return (select(chunk_state, early), select(late, chunk_state)), returned

    def finish(self, args: Sequence[Any], state: Any) -> Sequence[Any]:
        found = []
        for i, chunk_state in enumerate(state):
            operands, where = self.chunk_operands(args, i, 0), self.where(i, 0)
            found.append(self.blockwise.finish(self.device, self.op, operands, chunk_state, where))
        outs: list[Any] = []
        for r, (a, b, dims) in enumerate(zip(*found, self.rule.results, strict=True)):
            if r in self.blockwise.returning:
                outs.append(())
            elif self.blockwise.along in dims:
                outs.append(jnp.concatenate([a, b], dims.index(self.blockwise.along)))
            else:
                outs.append(a + b)
        return outs

    def run_pair(self, args: Sequence[Any], state: Any, query: int, key: int) -> tuple[Any, Any]:
        """Runs the op on chunk `query` (0 early, 1 late) of queries and chunk `key` of keys."""
        return self.run_chunks(self.chunk_operands(args, query, key), state, self.where(query, key))

    def where(self, query: int, key: int) -> Where:
        """(index, number) of chunks in the sequence by factor, for one pair of chunks."""
        size = self.size
        mine = 2 * size - 1 - self.here if query else self.here
        theirs = 2 * size - 1 - self.block if key else self.block
        return {self.blockwise.along: (mine, 2 * size), self.blockwise.factor: (theirs, 2 * size)}

    def chunk_operands(self, args: Sequence[Any], query: int, key: int) -> list[Any]:
        """Operands at chunk `query` of queries and chunk `key` of keys."""
        chunk, chunks = self.where(query, key)[self.blockwise.factor]
        found = []
        for i, (x, dims) in enumerate(zip(args, self.rule.operands, strict=True)):
            if self.blockwise.factor in dims and i in self.moving:
                x = _block_of(x, dims, self.blockwise.factor, key, 2)
            elif self.blockwise.factor in dims:
                x = _block_of(x, dims, self.blockwise.factor, chunk, chunks)
            if self.blockwise.along in dims:
                x = _block_of(x, dims, self.blockwise.along, query, 2)
            found.append(x)
        return found

    def join_chunks(self, early: Any, late: Any, returning: int) -> Any:
        """Block of a returning result from the block's two chunks."""
        dims = self.rule.results[self.blockwise.returning[returning]]
        return jnp.concatenate([early, late], dims.index(self.blockwise.factor))


def _block_of(x: Any, dims: Dims, factor: int, block: Any, blocks: int) -> Any:
    """Block number `block` of `blocks` along a factor; `x` itself if `blocks` is 1."""
    dim = dims.index(factor)
    size = x.shape[dim] // blocks
    if size == x.shape[dim]:
        return x
    return lax.dynamic_slice_in_dim(x, block * size, size, dim)
