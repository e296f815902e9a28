"""Turns a device-local program into jax: the body of one `jax.shard_map`, equation by equation.

No decision is left to XLA's partitioner. Gathers that are made again are tied to another operand
of their consumer by an `optimization_barrier`, so that common-subexpression elimination does not
merge them with the first (XLA:TPU and GPU honour it; XLA:CPU drops barriers before it merges).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence, Set
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from partir_search.ir.bind import constant
from partir_search.ir.core import Literal
from partir_search.ir.halos import together
from partir_search.ir.local_op import run_local, widened
from partir_search.ir.partition import Partition
from partir_search.ir.rule import Dims
from partir_search.lowering.collective_matmul import Walk
from partir_search.lowering.device import Device, Effects, Shardings
from partir_search.lowering.emit_blocks import block_turn
from partir_search.lowering.emit_steps import run_step
from partir_search.lowering.emit_window import coordinate
from partir_search.lowering.local_ir import (
    AttentionTurn,
    Block,
    ChunkedOp,
    LocalOp,
    LocalProgram,
    MatmulTurn,
    Reshard,
    RingTurn,
)
from partir_search.lowering.local_value import LocalValue, Source
from partir_search.lowering.reshard_steps import (
    AllGather,
    Permute,
)
from partir_search.lowering.scheduling.delay import gather_queue, ring_queue
from partir_search.lowering.scheduling.early_reads import read_early
from partir_search.lowering.scheduling.layouts import held_by_rows, row_major
from partir_search.lowering.traits import LoweringTraits


def emit(
    program: LocalProgram, traits: LoweringTraits, sharding: Shardings
) -> Callable[..., tuple[Any, ...]]:
    """A function of the local arguments and the lifted constants (`LocalProgram.lifted`), to be run
    inside `jax.shard_map` over the mesh.

    Args:
      traits: of the compiler for the mesh's devices.
      sharding: the sharding of a layout on the mesh's devices.
    """
    by_rows = held_by_rows(program, traits)
    waits: dict[int, tuple[LocalValue, ...]] = {}
    if traits.delays_regathers:
        waits = gather_queue(program.body, program.partition.rules, traits)
    constants = program.partition.module.constants

    lifted, count = program.lifted, len(program.body.args)

    def run(*args: Any) -> tuple[Any, ...]:
        fixed = {
            program.constants[i].id: constant(a) for i, a in constants.items() if i not in lifted
        }
        fixed |= {program.constants[i].id: a for i, a in zip(lifted, args[count:], strict=True)}
        effects = Effects(sharding)
        results = _run_block(
            program.partition,
            program.body,
            args[:count],
            fixed,
            effects,
            traits,
            by_rows,
            waits,
        )
        return tuple(_after_last_use(program, args, results))

    return run


def _after_last_use(
    program: LocalProgram, args: Sequence[Any], results: Sequence[Any]
) -> list[Any]:
    """Results that are gathered into a donated argument's buffer, tied to the argument.

    ZeRO's parameters: without this XLA:TPU copies the argument at the start, for the gather not to
    overwrite it, and keeps the copy through the step.
    """
    module, after = program.partition.module, list(results)
    gathered = {
        item.target.id
        for item in program.body.steps
        if isinstance(item, Reshard) and isinstance(item.step, AllGather)
    }
    for arg, result in module.ties:
        source = program.body.results[result]
        if arg in module.donated and isinstance(source, LocalValue) and source.id in gathered:
            after[result], _ = lax.optimization_barrier((results[result], args[arg]))
    return after


def _run_block(
    partition: Partition,
    block: Block,
    args: Sequence[Any],
    outer: Mapping[int, Any],
    effects: Effects,
    traits: LoweringTraits,
    by_rows: Mapping[int, Sequence[LocalValue]] = MappingProxyType({}),
    waits: Mapping[int, Sequence[LocalValue]] = MappingProxyType({}),
) -> list[Any]:
    env: dict[int, Any] = dict(outer)
    for local, arg in zip(block.args, args, strict=True):
        env[local.id] = arg

    def read(source: Source) -> Any:
        if isinstance(source, Literal):
            return jnp.asarray(source.value, source.type.dtype)
        return env[source.id]

    fills: set[int] = set()  # slots made of no array
    remade: set[int] = set()  # slots that a compiler makes where they are used
    queue = ring_queue(block, traits)
    early = read_early(block, partition.rules, traits)
    for i, item in enumerate(block.steps):
        if i in queue:
            used = [item.source] if isinstance(item, Reshard) else item.ins
            _tie([s for s in (*queue[i], *used) if isinstance(s, LocalValue) and s.id in env], env)
        if isinstance(item, Reshard):
            moved = together(env[item.source.id])
            if item.regather and isinstance(item.step, (AllGather, Permute)):
                moved = _fence(block, i, item, moved, env, fills, remade)
            if made := waits.get(i, ()):
                after = lax.optimization_barrier((moved, *(env[s.id] for s in made)))
                moved = after[0]
                env.update(zip((s.id for s in made), after[1:], strict=True))
            blocks = [env[b.id] for b in item.received]
            env[item.target.id] = run_step(
                partition.mesh, item.step, moved, traits.reduce_scatter_tiles_first, blocks
            )
        else:
            outs = _apply(partition, item, read, env, effects, traits)
            for local, out in zip(item.outs, outs, strict=True):
                env[local.id] = out
            if isinstance(item, RingTurn) and not item.last:
                _end_turn(block, i, item, env)
            if i in early:
                _tie([*item.outs, early[i]], env)
            if not item.blocks and not any(
                isinstance(x, LocalValue) and x.value.type.shape for x in item.ins
            ):
                fills.update(local.id for local in item.outs)
            if partition.rules[item.op.id].elementwise:
                remade.update(local.id for local in item.outs)
        for local in by_rows.get(i, ()):
            env[local.id] = row_major(env[local.id])
    return [read(r) for r in block.results]


def _apply(
    partition: Partition,
    item: LocalOp,
    read: Callable[[Source], Any],
    env: Mapping[int, Any],
    effects: Effects,
    traits: LoweringTraits,
) -> Sequence[Any]:
    beside_too = partition.rules[item.op.id].beside
    args = [read(x) if beside_too else together(read(x)) for x in item.ins]
    if isinstance(item, (AttentionTurn, ChunkedOp)):
        return block_turn(Device(partition, item.op, effects), item, args, env)
    if isinstance(item, RingTurn):
        return _turn(partition, item, args, env, effects)
    if not item.blocks:
        device = Device(partition, item.op, effects)
        return run_local(device, partition.rules[item.op.id], item.op, args)
    blocks = [
        lambda *inner, b=b: _run_block(partition, b, inner, env, effects.inside(), traits)
        for b in item.blocks
    ]
    emit = partition.rules[item.op.id].emit
    assert emit is not None, item.op.prim
    outs = emit(item.op, blocks, args)
    if item.op.effect:  # what follows waits for the region's end
        plain = (x for x in outs if not jnp.issubdtype(x.dtype, jax.dtypes.extended) and x.size)
        effects.tokens.extend(jnp.ravel(x)[0] for x in itertools.islice(plain, 1))
    return outs


def _turn(
    partition: Partition,
    item: RingTurn,
    args: Sequence[Any],
    env: Mapping[int, Any],
    effects: Effects,
) -> Sequence[Any]:
    """The product of a turn and those before, in 32 bits where the result has fewer."""
    rule, op = partition.rules[item.op.id], widened(item.op)
    part = item if isinstance(item, MatmulTurn) else None
    index: Any = None
    if part:
        walk = part.walk
        index = (coordinate(partition.mesh, walk.axis) + part.offset) % walk.size
        args = [
            _part(x, dims, walk, index) if i != walk.moving else x
            for i, (x, dims) in enumerate(zip(args, rule.operands, strict=True))
        ]
    (out,) = run_local(Device(partition, op, effects), rule, op, args)
    (local,) = item.outs
    narrow = local.value.type.dtype
    for sums in item.arrived:  # in the type of the result
        out = out + env[sums.id]
    if item.arrived or (part and part.passes_results):
        return [out.astype(narrow)]
    if part and part.assembles(rule):
        dim = rule.results[0].index(part.walk.factor)
        whole = env[local.id] if item.turn else lax.empty(local.shape, narrow)
        at = index * out.shape[dim]
        return [lax.dynamic_update_slice_in_dim(whole, out.astype(narrow), at, dim)]
    if item.turn:
        out = out + env[local.id]
    return [out.astype(narrow) if item.last else out]


def _part(x: Any, dims: Dims, walk: Walk, index: Any) -> Any:
    """The block of an operand that a turn works on."""
    if walk.factor not in dims:
        return x
    dim = dims.index(walk.factor)
    size = x.shape[dim] // walk.size
    return lax.dynamic_slice_in_dim(x, index * size, size, dim)


def _end_turn(block: Block, at: int, item: RingTurn, env: dict[int, Any]) -> None:
    """Ties what has moved on to the turn's result: the next turn starts after this one, with one
    product between a permute's start and its end, and no more than two copies of an operand.
    """
    later = (block.steps[i] for i in range(at + 1, len(block.steps)))
    following = next(x for x in later if isinstance(x, LocalOp))
    moved = [s for s in following.ins if isinstance(s, LocalValue) and s not in item.ins]
    _tie([*item.outs, *moved], env)


def _tie(slots: Sequence[LocalValue], env: dict[int, Any]) -> None:
    """Makes every use of one of the slots from here on wait for all of them."""
    for local, x in zip(slots, lax.optimization_barrier([env[s.id] for s in slots]), strict=True):
        env[local.id] = x


def _fence(
    block: Block,
    at: int,
    move: Reshard,
    moved: Any,
    env: dict[int, Any],
    fills: Set[int],
    remade: Set[int],
) -> Any:
    """Keeps the gather from being merged with the one before, and where that costs nothing ties
    the shard to another operand of the op that the gather is made for.

    Not to one of `fills` (the zeros that a scatter adds to, say): it would wait for nothing, and
    what the compiler would never store would be. Nor to what is `remade`: tied, even by one number
    of it, it is stored. XLA:TPU makes the logits' gradient inside of the two products that read it.
    """
    user = next((x for x in block.steps[at:] if isinstance(x, LocalOp) and x.op is move.op), None)
    for source in user.ins if user else ():
        if isinstance(source, Literal) or source.id not in env or source is move.source:
            continue
        if source.value.type.shape and source.id not in fills:
            if source.id in remade:
                break
            moved, env[source.id] = lax.optimization_barrier((moved, env[source.id]))
            return moved
    return lax.optimization_barrier(moved)
