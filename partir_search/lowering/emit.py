"""Turns a scheduled device-local program into jax: the body of one `jax.shard_map`.

One jax equation per collective and op. Emission decides nothing: order, barriers and layouts are
the `Scheduling` of the instructions (`lowering/scheduling/`), and no decision is left to XLA's
partitioner.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.layout import Layout, with_layout_constraint

from partir_search.ir.bind import constant
from partir_search.ir.core import Literal, Op
from partir_search.ir.halos import joined
from partir_search.ir.local_op import run_local
from partir_search.ir.partition import Partition
from partir_search.ir.role import Role
from partir_search.ir.rule import NONE, OpRule
from partir_search.ir.source_names import located
from partir_search.lowering.device import Device, Effects, Shardings
from partir_search.lowering.emit_blocks import block_turn
from partir_search.lowering.emit_scatters import scatters_into_totals
from partir_search.lowering.emit_steps import StepRunner, run_step
from partir_search.lowering.emit_turns import matmul_turn
from partir_search.lowering.local_ir import (
    AttentionTurn,
    ChunkedOp,
    LocalOp,
    LocalProgram,
    LocalRegion,
    Reshard,
    RingTurn,
)
from partir_search.lowering.local_value import LocalValue, Source
from partir_search.rules.indexing import added_to_rows
from partir_search.rules.registry import role_of

Env = dict[int, Any]
"""Arrays by id of local value."""


def emit(program: LocalProgram, sharding: Shardings) -> Callable[..., tuple[Any, ...]]:
    """Function to run inside `jax.shard_map` over the mesh.

    The function takes local arguments, then the constants of `LocalProgram.lifted`.

    Args:
      program: program scheduled for the compiler of the mesh's devices.
      sharding: function from a layout to a sharding on the mesh's devices.
    """
    assert program.traits is not None, "a program is scheduled before it is emitted"
    lifted, count = program.lifted, len(program.body.args)

    def run(*args: Any) -> tuple[Any, ...]:
        env = _inlined(program)
        env |= {program.constants[i].id: a for i, a in zip(lifted, args[count:], strict=True)}
        effects = Effects(sharding)
        results = _run_region(program.partition, program.body, args[:count], env, effects)
        places = {local.id: at for at, local in enumerate(program.body.args)}
        for at, argument in program.results_after:
            results[at], _ = lax.optimization_barrier((results[at], args[places[argument.id]]))
        return tuple(results)

    return run


def emit_region(
    program: LocalProgram, body: LocalRegion, sharding: Shardings, step: StepRunner = run_step
) -> Callable[[Sequence[Any]], list[Any]]:
    """Function of the arguments of one region of a program, to run inside `jax.shard_map`.

    Args:
      program: scheduled program.
      body: region of the program, or a stretch of one; all values that it reads are its own, its
        arguments, or small constants of the program.
      sharding: function from a layout to a sharding on the mesh's devices.
      step: runs a reshard step on a tile.
    """

    def run(args: Sequence[Any]) -> list[Any]:
        effects = Effects(sharding, step=step)
        return _run_region(program.partition, body, args, _inlined(program), effects)

    return run


def _inlined(program: LocalProgram) -> Env:
    """Closed-over arrays that are no arguments."""
    constants, lifted = program.partition.module.constants, set(program.lifted)
    return {program.constants[i].id: constant(a) for i, a in constants.items() if i not in lifted}


def _run_region(
    partition: Partition,
    body: LocalRegion,
    args: Sequence[Any],
    outer: Mapping[int, Any],
    effects: Effects,
) -> list[Any]:
    env: Env = dict(outer)
    for local, arg in zip(body.args, args, strict=True):
        env[local.id] = arg
    into = scatters_into_totals(partition.analysis.row_sums, body)
    for item in body.steps:
        op, made = item.op, item.outs[0].id if item.outs else NONE
        if made in into.skipped:
            continue
        with located(op.origin, op.scope) if op else contextlib.nullcontext(), _naming(op):
            if made in into.sums:
                env[made] = _scattered(partition, *into.sums[made], env, effects)
            else:
                _run_item(partition, item, env, effects)
    return [_read(r, env) for r in body.results]


@contextlib.contextmanager
def _naming(op: Op | None) -> Iterator[None]:
    """Adds the op to an error of `jax.debug_nans`, which runs a failed program op by op."""
    try:
        yield
    except FloatingPointError as error:
        if op is not None and not hasattr(error, "__notes__"):
            where = f" at {op.source}" if op.source else ""
            error.add_note(f"in {op.prim}{where}, on the tile of some device")
        raise


def _run_item(partition: Partition, item: Reshard | LocalOp, env: Env, effects: Effects) -> None:
    order = item.scheduling
    if order.operands_after:
        read = (item.source,) if isinstance(item, Reshard) else item.ins
        operands = (x for x in read if isinstance(x, LocalValue))
        add_dependency([*order.operands_after, *operands], env)
    if isinstance(item, Reshard):
        env[item.target.id] = _run_reshard(partition, item, env, effects.step)
    else:
        outs = _run_op(partition, item, env, effects)
        env.update((local.id, out) for local, out in zip(item.outs, outs, strict=True))
    if order.before is not None:
        add_dependency([*item.outs, *order.before], env)
    for local in order.row_major:
        rows = Layout(_by_rows(env[local.id].shape))
        env[local.id] = with_layout_constraint(env[local.id], rows)
    for local in order.by_columns:
        last = len(local.shape) - 1
        columns = Layout((last, *range(last)))
        env[local.id] = with_layout_constraint(env[local.id], columns)
    for local in order.in_order:
        dims = Layout(tuple(range(len(local.shape))))
        env[local.id] = with_layout_constraint(env[local.id], dims)


def _scattered(
    partition: Partition, item: LocalOp, total: LocalValue, env: Env, effects: Effects
) -> Any:
    """Total with the rows of a scatter into zeros added."""
    _, *operands = (joined(_read(x, env)) for x in item.ins)
    return added_to_rows(Device(partition, item.op, effects), item.op, env[total.id], *operands)


def _row_major_on_cpu(x: Any) -> Any:
    """An array with a row-major layout on CPUs, as it is elsewhere.

    XLA:CPU lays out an op's result as a later all_gather of a minor dim reads it, and refuses an
    FFT with another layout ("RET_CHECK failure ... fft_thunk.cc").
    """
    rows = Layout(tuple(range(x.ndim)))
    return lax.platform_dependent(
        x, cpu=lambda y: with_layout_constraint(y, rows), default=lambda y: y
    )


def _product(ctx: Device, rule: OpRule, op: Op, args: Sequence[Any]) -> Sequence[Any]:
    """Results of a product with a result wider than the operands, widened first on CPUs.

    XLA:CPU refuses some such products on rows of a loop, and computes the rest in the wider type
    ("Unsupported element type for DotThunk::Execute: BF16 x BF16 = F32").
    """
    wide = op.results[0].type.dtype

    def widened(*xs: Any) -> list[Any]:
        return list(run_local(ctx, rule, op, [x.astype(wide) for x in xs]))

    def plain(*xs: Any) -> list[Any]:
        return list(run_local(ctx, rule, op, xs))

    found: list[Any] = lax.platform_dependent(*args, cpu=widened, default=plain)
    return found


def _widens(op: Op) -> bool:
    """True for a product of floating-point numbers narrower than the result."""
    if role_of(op) is not Role.DOT:
        return False
    result, operands = op.results[0].type, [x.type for x in op.operands]
    floats = all(jnp.issubdtype(x.dtype, jnp.floating) for x in (*operands, result))
    return floats and all(x.itemsize < result.itemsize for x in operands)


def _by_rows(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Dims from major to minor in a layout of rows; dims of one element first, which fill tiles of
    few elements elsewhere.
    """
    return tuple(sorted(range(len(shape)), key=lambda d: shape[d] != 1 or d == len(shape) - 1))


def _read(source: Source, env: Env) -> Any:
    if isinstance(source, Literal):
        return jnp.asarray(source.value, source.type.dtype)
    return env[source.id]


def add_dependency(values: Sequence[LocalValue], env: Env) -> None:
    """Makes later readers of any of the values wait for all of the values."""
    tied = lax.optimization_barrier([env[local.id] for local in values])
    env.update((local.id, x) for local, x in zip(values, tied, strict=True))


def _run_reshard(partition: Partition, item: Reshard, env: Env, step: StepRunner) -> Any:
    order, x = item.scheduling, joined(env[item.source.id])
    if order.barrier is not None:
        x = _behind(x, order.barrier, env)
    if order.after:
        x = _behind(x, order.after, env)
    received = [env[local.id] for local in item.received]
    return step(partition.mesh, item.step, x, order.tiles_first, received)


def _behind(x: Any, values: Sequence[LocalValue], env: Env) -> Any:
    """An array behind one barrier with values, and their later readers behind the barrier too."""
    if not values:
        return lax.optimization_barrier(x)
    x, *tied = lax.optimization_barrier((x, *(env[local.id] for local in values)))
    env.update((local.id, y) for local, y in zip(values, tied, strict=True))
    return x


def _run_op(partition: Partition, item: LocalOp, env: Env, effects: Effects) -> Sequence[Any]:
    rule = partition.rules[item.op.id]
    args = [_read(x, env) if rule.accepts_haloed_tile else joined(_read(x, env)) for x in item.ins]
    device = Device(partition, item.op, effects)
    if isinstance(item, (AttentionTurn, ChunkedOp)):
        return block_turn(device, item, args, env)
    if isinstance(item, RingTurn):
        return matmul_turn(partition, item, args, env, effects)
    if not item.regions:
        run = _product if _widens(item.op) else run_local
        outs = run(device, rule, item.op, args)
        return [_row_major_on_cpu(x) for x in outs] if rule.row_major_on_cpu else outs
    bodies = [
        lambda *inner, b=b: _run_region(partition, b, inner, env, effects.inside())
        for b in item.regions
    ]
    assert rule.emit is not None, item.op.prim
    outs = rule.emit(item.op, bodies, args)
    if item.op.effect:  # later effects wait for a result of the region
        plain = (x for x in outs if not jnp.issubdtype(x.dtype, jax.dtypes.extended) and x.size)
        effects.tokens.extend(jnp.ravel(x)[0] for x in itertools.islice(plain, 1))
    return outs
