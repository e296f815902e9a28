"""Emits turns of ring attention, and blockwise ops in chunks (`lowering/ring_attention.py`)."""

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
    """A blockwise op on one block. Until the last turn the state takes the place of a result."""
    how = device.partition.rules[item.op.id].blockwise
    assert how is not None
    keeper = next((i for i in range(len(item.outs)) if i not in how.returning), None)
    ring = item if isinstance(item, AttentionTurn) else None
    later = ring is not None and ring.turn > 0
    state = env[item.outs[keeper].id] if later and keeper is not None else None
    mesh, here = device.partition.mesh, jnp.int32(0)
    for axis in ring.axes if ring else ():
        here = here * mesh.sizes[axis] + coordinate(mesh, axis)
    make = _ZigzagTurn if ring and ring.zigzag else _Turn
    turn = make(device, item, how, here)
    state, returned = turn.run(args, state)
    last = ring is None or ring.last
    outs: list[Any] = list(turn.finish(args, state)) if last else [() for _ in item.outs]
    for r, place in enumerate(how.returning):
        outs[place] = returned[r] + env[item.received[r].id] if later else returned[r]
    if not last and keeper is not None:
        outs[keeper] = state
    return outs


class _Turn:
    """Blocks in the order of the sequence."""

    def __init__(
        self, device: Device, item: AttentionTurn | ChunkedOp, how: Blockwise, here: Any
    ) -> None:
        self.device, self.op, self.how = device, item.op, how
        self.rule, self.chunks = device.partition.rules[item.op.id], item.chunks
        self.size, self.offset, self.moving = 1, 0, tuple[int, ...]()
        if isinstance(item, AttentionTurn):
            self.size, self.offset, self.moving = item.turns, item.offset, item.moving
        self.here, self.block = here, (here + self.offset) % self.size

    def run(self, args: Sequence[Any], state: Any) -> tuple[Any, Sequence[Any]]:
        """The state after the block, and what returns with it."""
        where: Where = {self.how.factor: (self.block, self.size)}
        return self.parts(self.keys(args, where), state, where)

    def finish(self, args: Sequence[Any], state: Any) -> Sequence[Any]:
        """The results after the last block."""
        where: Where = {self.how.factor: (self.block, self.size)}
        return self.how.finish(self.device, self.op, self.keys(args, where), state, where)

    def keys(self, args: Sequence[Any], where: Where) -> list[Any]:
        """Operands at the block; moving operands are the block."""
        block, blocks = where[self.how.factor]
        return [
            x
            if i in self.moving or self.how.factor not in dims
            else _at(x, dims, self.how.factor, block, blocks)
            for i, (x, dims) in enumerate(zip(args, self.rule.operands, strict=True))
        ]

    def parts(self, args: Sequence[Any], state: Any, where: Where) -> tuple[Any, Sequence[Any]]:
        """The op on a block, part by part: the first one, and a loop over the others."""
        how, count = self.how, self.chunks
        block, blocks = where[how.factor]

        def one(state: Any, part: Any) -> tuple[Any, Sequence[Any]]:
            at = {**where, how.factor: (block * count + part, blocks * count)}
            operands = [
                _at(x, dims, how.factor, part, count) if how.factor in dims else x
                for x, dims in zip(args, self.rule.operands, strict=True)
            ]
            return how.turn(self.device, self.op, operands, state, at)

        state, first = one(state, 0)
        if count == 1:
            return state, first
        state, rest = lax.scan(one, state, jnp.arange(1, count))
        returned = []
        for r, x, others in zip(how.returning, first, rest, strict=True):
            dim = self.rule.results[r].index(how.factor)
            others = jnp.moveaxis(others, 0, dim)
            shape = (*x.shape[:dim], (count - 1) * x.shape[dim], *x.shape[dim + 1 :])
            returned.append(jnp.concatenate([x, others.reshape(shape)], dim))
        return state, returned


class _ZigzagTurn(_Turn):
    """Blocks of two chunks, one early and one late. Of four pairs of chunks two see nothing."""

    def run(self, args: Sequence[Any], state: Any) -> tuple[Any, Sequence[Any]]:
        early, late = state or (None, None)
        if not self.offset:
            early, first = self.pair(args, early, 0, 0)
            late, second = self.pair(args, late, 1, 0)
            late, third = self.pair(args, late, 1, 1)
            three = zip(first, second, third, strict=True)
            returned = [self.both(a + b, c, r) for r, (a, b, c) in enumerate(three)]
            return (early, late), returned
        late, first = self.pair(args, late, 1, 0)
        # Early queries see the early keys of an earlier device, else late ones the late ones.
        before = self.block < self.here

        def either(x: Any, y: Any) -> Any:
            return jax.tree.map(lambda a, b: jnp.where(before, a, b), x, y)

        two = zip(self.halves(args, 0, 0), self.halves(args, 1, 1), strict=True)
        chosen = [either(a, b) for a, b in two]
        late_where = self.where(1, 1)
        where = {f: (either(a, late_where[f][0]), n) for f, (a, n) in self.where(0, 0).items()}
        held, second = self.parts(chosen, either(early, late), where)
        nothing = [jnp.zeros_like(x) for x in second]
        returned = [
            self.both(a + jnp.where(before, b, z), jnp.where(before, z, b), r)
            for r, (a, b, z) in enumerate(zip(first, second, nothing, strict=True))
        ]
        return (either(held, early), either(late, held)), returned

    def finish(self, args: Sequence[Any], state: Any) -> Sequence[Any]:
        found = []
        for i, held in enumerate(state):
            operands, where = self.halves(args, i, 0), self.where(i, 0)
            found.append(self.how.finish(self.device, self.op, operands, held, where))
        outs: list[Any] = []
        for r, (a, b, dims) in enumerate(zip(*found, self.rule.results, strict=True)):
            if r in self.how.returning:
                outs.append(())
            elif self.how.along in dims:
                outs.append(jnp.concatenate([a, b], dims.index(self.how.along)))
            else:
                outs.append(a + b)
        return outs

    def pair(self, args: Sequence[Any], state: Any, query: int, key: int) -> tuple[Any, Any]:
        """The op on one of the two chunks of queries and one of keys."""
        return self.parts(self.halves(args, query, key), state, self.where(query, key))

    def where(self, query: int, key: int) -> Where:
        """Positions of these chunks in the sequence: by factor, which chunk of how many."""
        size = self.size
        mine = 2 * size - 1 - self.here if query else self.here
        theirs = 2 * size - 1 - self.block if key else self.block
        return {self.how.along: (mine, 2 * size), self.how.factor: (theirs, 2 * size)}

    def halves(self, args: Sequence[Any], query: int, key: int) -> list[Any]:
        """Operands at one of the two chunks of queries and one of keys."""
        chunk, chunks = self.where(query, key)[self.how.factor]
        found = []
        for i, (x, dims) in enumerate(zip(args, self.rule.operands, strict=True)):
            if self.how.factor in dims and i in self.moving:
                x = _at(x, dims, self.how.factor, key, 2)
            elif self.how.factor in dims:
                x = _at(x, dims, self.how.factor, chunk, chunks)
            if self.how.along in dims:
                x = _at(x, dims, self.how.along, query, 2)
            found.append(x)
        return found

    def both(self, early: Any, late: Any, returning: int) -> Any:
        """A block of two chunks."""
        dims = self.rule.results[self.how.returning[returning]]
        return jnp.concatenate([early, late], dims.index(self.how.factor))


def _at(x: Any, dims: Dims, factor: int, block: Any, blocks: int) -> Any:
    dim = dims.index(factor)
    size = x.shape[dim] // blocks
    if size == x.shape[dim]:
        return x
    return lax.dynamic_slice_in_dim(x, block * size, size, dim)
