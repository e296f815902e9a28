"""Turns a device-local program into jax: the body of one `jax.shard_map`, equation by equation.

No decision is left to XLA's partitioner. Gathers that are made again are tied to another operand
of their consumer by an `optimization_barrier`, so that common-subexpression elimination does not
merge them with the first (XLA:TPU and GPU honour it; XLA:CPU drops barriers before it merges).
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence, Set
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from partir_search.ir.bind import constant
from partir_search.ir.core import Literal, Op
from partir_search.ir.halos import Beside, together
from partir_search.ir.local_op import run_local, widened
from partir_search.ir.mesh import MeshShape
from partir_search.ir.partition import Layout, Partition
from partir_search.ir.rule import Dims
from partir_search.lowering.collective_matmul import RESULT, Walk
from partir_search.lowering.emit_blocks import block_turn
from partir_search.lowering.emit_window import beside, coordinate, fetch, permute, stretch
from partir_search.lowering.local_ir import Apply, Block, LocalProgram, Move
from partir_search.lowering.passing import Passing
from partir_search.lowering.reshard import Shuffle, Step
from partir_search.lowering.scheduling.delay import gather_queue, ring_queue
from partir_search.lowering.scheduling.early_reads import read_early
from partir_search.lowering.scheduling.layouts import held_by_rows, row_major
from partir_search.lowering.slots import Slot, Source
from partir_search.lowering.traits import LoweringTraits

Shardings = Callable[[Layout], Any]


@dataclasses.dataclass(frozen=True, slots=True)
class _Effects:
    """Surroundings of effects in one region.

    Attributes:
      sharding: the sharding of a layout on the mesh that the program is for.
      tokens: scalars that the next ordered effect of this region waits for; shared by its ops.
    """

    sharding: Shardings
    tokens: list[Any] = dataclasses.field(default_factory=list)

    def inside(self) -> _Effects:
        """Those of a region inside of this one."""
        return _Effects(self.sharding, list(self.tokens))


@dataclasses.dataclass(frozen=True, slots=True)
class _Device:
    """`LocalContext` inside a manual region: tile indices come from `lax.axis_index`."""

    partition: Partition
    op: Op
    effects: _Effects
    on_mesh: bool = True

    def _axes(self, factor: int) -> list[int]:
        p = self.partition
        return [a for a in p.order if p.loops[a][self.op.id] == factor]

    def tiles(self, factor: int) -> int:
        return self.partition.tiles_of(self.op, factor) if factor >= 0 else 1

    def tile_index(self, factor: int) -> Any:
        index: Any = jnp.int32(0)
        mesh = self.partition.mesh
        for axis in self._axes(factor):
            index = index * mesh.sizes[axis] + coordinate(mesh, axis)
        return index

    def once(self, run: Callable[[], Sequence[Any]]) -> Sequence[Any]:
        names = self.partition.mesh.device_names
        first = lax.axis_index(names) == 0
        shapes = jax.eval_shape(run)
        outs = lax.cond(first, run, lambda: [jnp.zeros(s.shape, s.dtype) for s in shapes])
        return [
            lax.psum(x.astype(jnp.int32), names).astype(bool)
            if x.dtype == bool
            else lax.psum(x, names)
            for x in outs
        ]

    def last_effects(self) -> Sequence[Any]:
        return self.effects.tokens

    def ran(self, token: Any) -> None:
        self.effects.tokens[:] = [token]

    def shardings(self) -> Sequence[Any]:
        return [self.effects.sharding(self.partition.layout(v)) for _, v in self.op.inputs()]


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
    waits: dict[int, tuple[Slot, ...]] = {}
    if traits.delays_regathers:
        waits = gather_queue(program.body, program.partition.rules, traits)
    constants = program.partition.module.constants

    lifted, count = program.lifted, len(program.body.args)

    def run(*args: Any) -> tuple[Any, ...]:
        fixed = {
            program.constants[i].id: constant(a) for i, a in constants.items() if i not in lifted
        }
        fixed |= {program.constants[i].id: a for i, a in zip(lifted, args[count:], strict=True)}
        effects = _Effects(sharding)
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
        if isinstance(item, Move) and item.step.kind == "all_gather"
    }
    for arg, result in module.ties:
        source = program.body.results[result]
        if arg in module.donated and isinstance(source, Slot) and source.id in gathered:
            after[result], _ = lax.optimization_barrier((results[result], args[arg]))
    return after


def _run_block(
    partition: Partition,
    block: Block,
    args: Sequence[Any],
    outer: Mapping[int, Any],
    effects: _Effects,
    traits: LoweringTraits,
    by_rows: Mapping[int, Sequence[Slot]] = MappingProxyType({}),
    waits: Mapping[int, Sequence[Slot]] = MappingProxyType({}),
) -> list[Any]:
    env: dict[int, Any] = dict(outer)
    for slot, arg in zip(block.args, args, strict=True):
        env[slot.id] = arg

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
            used = [item.source] if isinstance(item, Move) else item.ins
            _tie([s for s in (*queue[i], *used) if isinstance(s, Slot) and s.id in env], env)
        if isinstance(item, Move):
            moved = together(env[item.source.id])
            if item.again and item.step.kind in ("all_gather", "collective_permute"):
                moved = _fence(block, i, item, moved, env, fills, remade)
            if made := waits.get(i, ()):
                after = lax.optimization_barrier((moved, *(env[s.id] for s in made)))
                moved = after[0]
                env.update(zip((s.id for s in made), after[1:], strict=True))
            blocks = [env[b.id] for b in item.blocks]
            if item.beside:
                env[item.target.id] = put_beside(partition.mesh, item.step, [moved, *blocks])
            else:
                env[item.target.id] = run_step(
                    partition.mesh, item.step, moved, traits.reduce_scatter_tiles_first, blocks
                )
        else:
            outs = _apply(partition, item, read, env, effects, traits)
            for slot, out in zip(item.outs, outs, strict=True):
                env[slot.id] = out
            if item.turn + 1 < item.turns:
                _end_turn(block, i, item, env)
            if i in early:
                _tie([*item.outs, early[i]], env)
            if not item.blocks and not any(
                isinstance(x, Slot) and x.value.type.shape for x in item.ins
            ):
                fills.update(slot.id for slot in item.outs)
            if partition.rules[item.op.id].elementwise:
                remade.update(slot.id for slot in item.outs)
        for slot in by_rows.get(i, ()):
            env[slot.id] = row_major(env[slot.id])
    return [read(r) for r in block.results]


def _apply(
    partition: Partition,
    item: Apply,
    read: Callable[[Source], Any],
    env: Mapping[int, Any],
    effects: _Effects,
    traits: LoweringTraits,
) -> Sequence[Any]:
    beside_too = partition.rules[item.op.id].beside
    args = [read(x) if beside_too else together(read(x)) for x in item.ins]
    if item.turns > 1 or item.part:
        return _turn(partition, item, args, env, effects)
    if not item.blocks:
        device = _Device(partition, item.op, effects)
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
    item: Apply,
    args: Sequence[Any],
    env: Mapping[int, Any],
    effects: _Effects,
) -> Sequence[Any]:
    """One product of a ring with those before, in 32 bits where the result has fewer."""
    part, rule = item.part, partition.rules[item.op.id]
    if isinstance(part, Passing):
        device = _Device(partition, item.op, effects)
        return block_turn(device, item, part, args, env)
    op = widened(item.op)
    index: Any = None
    if part:
        walk = part.walk
        index = (coordinate(partition.mesh, walk.axis) + part.offset) % walk.size
        args = [
            _part(x, dims, walk, index) if i != walk.moving else x
            for i, (x, dims) in enumerate(zip(args, rule.operands, strict=True))
        ]
    (out,) = run_local(_Device(partition, op, effects), rule, op, args)
    (slot,) = item.outs
    narrow = slot.value.type.dtype
    for sums in item.arrived:  # in the type of the result
        out = out + env[sums.id]
    if item.arrived or (part and part.walk.moving == RESULT):
        return [out.astype(narrow)]
    if part and part.assembles(rule):
        dim = rule.results[0].index(part.walk.factor)
        whole = env[slot.id] if item.turn else lax.empty(slot.shape, narrow)
        at = index * out.shape[dim]
        return [lax.dynamic_update_slice_in_dim(whole, out.astype(narrow), at, dim)]
    if item.turn:
        out = out + env[slot.id]
    return [out.astype(narrow) if item.turn + 1 == item.turns else out]


def _part(x: Any, dims: Dims, walk: Walk, index: Any) -> Any:
    """The block of an operand that a turn works on."""
    if walk.factor not in dims:
        return x
    dim = dims.index(walk.factor)
    size = x.shape[dim] // walk.size
    return lax.dynamic_slice_in_dim(x, index * size, size, dim)


def _end_turn(block: Block, at: int, item: Apply, env: dict[int, Any]) -> None:
    """Ties what has moved on to the turn's result: the next turn starts after this one, with one
    product between a permute's start and its end, and no more than two copies of an operand.
    """
    later = (block.steps[i] for i in range(at + 1, len(block.steps)))
    following = next(x for x in later if isinstance(x, Apply))
    moved = [s for s in following.ins if isinstance(s, Slot) and s not in item.ins]
    _tie([*item.outs, *moved], env)


def _tie(slots: Sequence[Slot], env: dict[int, Any]) -> None:
    """Makes every use of one of the slots from here on wait for all of them."""
    for slot, x in zip(slots, lax.optimization_barrier([env[s.id] for s in slots]), strict=True):
        env[slot.id] = x


def _fence(
    block: Block,
    at: int,
    move: Move,
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
    user = next((x for x in block.steps[at:] if isinstance(x, Apply) and x.op is move.op), None)
    for source in user.ins if user else ():
        if isinstance(source, Literal) or source.id not in env or source is move.source:
            continue
        if source.value.type.shape and source.id not in fills:
            if source.id in remade:
                break
            moved, env[source.id] = lax.optimization_barrier((moved, env[source.id]))
            return moved
    return lax.optimization_barrier(moved)


def put_beside(mesh: MeshShape, step: Step, blocks: Sequence[Any]) -> Beside:
    """A window whose parts are not put together; see `run_step`."""
    return beside(blocks, step.detail, step.dim, tuple(mesh.names[a] for a in step.axes))


def run_step(
    mesh: MeshShape, step: Step, x: Any, tiles_first: bool = False, blocks: Sequence[Any] = ()
) -> Any:
    """One step of a redistribution on a local tile, inside a manual region over `mesh`.

    Args:
      blocks: fetched blocks to be put together with the tile.
    """
    names = tuple(mesh.names[a] for a in step.axes)
    sizes = [mesh.sizes[a] for a in step.axes]
    if step.kind == "slice":
        for axis, size in zip(step.axes, sizes, strict=True):
            tile = x.shape[step.dim] // size
            x = lax.dynamic_slice_in_dim(x, coordinate(mesh, axis) * tile, tile, step.dim)
        return x
    if step.kind == "collective_permute":
        axes = dict(zip(names, sizes, strict=True))
        if isinstance(step.detail, Shuffle):
            return permute(x, step.detail.pairs, axes, mesh.device_names)
        return fetch(x, step.detail, step.dim, axes, mesh.device_names)
    if step.kind == "window":
        return stretch([x, *blocks], step.detail, step.dim, names)
    if step.kind == "all_gather":
        return lax.all_gather(x, names, axis=step.dim, tiled=True)
    if step.kind == "reduce_scatter" and tiles_first and step.dim:
        shape, dim, tiles = x.shape, step.dim, math.prod(sizes)
        x = x.reshape(*shape[:dim], tiles, shape[dim] // tiles, *shape[dim + 1 :])
        return lax.psum_scatter(jnp.moveaxis(x, dim, 0), names, scatter_dimension=0)
    if step.kind == "reduce_scatter":
        return lax.psum_scatter(x, names, scatter_dimension=step.dim, tiled=True)
    if step.kind == "all_to_all":
        return lax.all_to_all(x, names, split_axis=step.to_dim, concat_axis=step.dim, tiled=True)
    if step.monoid == "sum":
        return lax.psum(x, names)
    if step.monoid in ("max", "or"):
        return lax.pmax(x, names)
    return lax.pmin(x, names)
