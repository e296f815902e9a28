"""Random numbers: each device draws its slice of the global bits, without communication.

With partitionable threefry the bits of an element depend only on the key and the element's linear
index (two 32-bit counters): a tile is drawn from its own counters, bit for bit equal to the whole
array's. All further generators draw the whole array and slice the tile.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.random import threefry2x32_p

from partir_search.ir.bind import bind
from partir_search.ir.core import Op, Shape
from partir_search.ir.kind import Kind
from partir_search.ir.rule import NONE, OpRule
from partir_search.rules.registry import register, result_shape, shape_of, whole


@register(
    "random_clone",
    "random_fold_in",
    "random_gamma",
    "random_seed",
    "random_split",
    "random_unwrap",
    "random_wrap",
)
def keys(op: Op) -> OpRule:
    """Key dims are tiled; the data of one key are not.

    Threefry only: XLA's generators draw for a whole array of keys from its first one.
    """
    fry = any(is_threefry(x.type.dtype) for x in (*op.operands, *op.results))
    of_result = op.prim in ("random_fold_in", "random_wrap")
    batch = result_shape(op) if of_result else shape_of(op, 0)
    rank = len(batch) if fry else 0

    def dims(shape: Shape) -> tuple[int, ...]:
        own = rank if shape[: len(batch)] == batch else 0
        return (*range(own), *(NONE,) * (len(shape) - own))

    return OpRule(
        Kind.RANDOM,
        sizes=batch[:rank],
        operands=tuple(dims(x.type.shape) for x in op.operands),
        results=(dims(result_shape(op)),),
        reducers=("",) * rank,
        tolerates_padding=False,
        flops_per_point=100.0,
    )


@register("rng_bit_generator")
def generators(op: Op) -> OpRule:
    """Generators whose bits depend on the order of the draws run replicated."""
    return whole(op, Kind.RANDOM)


@register("threefry2x32")
def threefry(op: Op) -> OpRule:
    """The threefry hash of two words of a key and two of a counter, element by element."""
    result = result_shape(op)
    if any(x.type.shape != result for x in op.operands):
        return whole(op, Kind.RANDOM)
    dims = tuple(range(len(result)))
    return OpRule(
        Kind.RANDOM,
        sizes=result,
        operands=(dims,) * len(op.operands),
        results=(dims,) * len(op.results),
        reducers=("",) * len(result),
        flops_per_point=60.0,
        elementwise=True,
    )


def draws_in_order(op: Op) -> bool:
    """True for an op of a generator that draws for a whole array of keys from the first key.

    `jax.vmap` over keys changes the numbers.
    """
    types = [x.type.dtype for x in (*op.operands, *op.results)]
    keys = [t for t in types if jnp.issubdtype(t, jax.dtypes.prng_key)]
    return op.prim == "rng_bit_generator" or not all(map(is_threefry, keys))


def is_threefry(dtype: Any) -> bool:
    """True for the dtype of threefry keys, `key<fry>`."""
    return "fry" in str(dtype)


def _without_mark(params: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in params.items() if k != "threefry_partitionable"}


def _localize(
    params: Mapping[str, Any], _: Sequence[Shape], results: Sequence[Shape]
) -> dict[str, Any]:
    drawn = len(params["shape"])
    local = results[0][len(results[0]) - drawn :] if drawn else ()
    return {**_without_mark(params), "shape": local}


@register("random_bits")
def random_bits(op: Op) -> OpRule:
    """Key dims pass through (see `keys`); drawn dims are free."""
    result, rank = result_shape(op), len(shape_of(op, 0))
    drawn = result[rank:]
    if not is_threefry(op.operands[0].type.dtype):
        blocked = range(rank)
    elif op.params["threefry_partitionable"] and math.prod(drawn) < 2**32:
        blocked = range(0)
    else:
        blocked = range(len(result))
    return OpRule(
        Kind.RANDOM,
        sizes=result,
        operands=(tuple(range(rank)),),
        results=(tuple(range(len(result))),),
        reducers=("",) * len(result),
        blocked=frozenset(blocked),
        tolerates_padding=False,
        flops_per_point=60.0,
        elementwise=False,
        localize=_localize,
        local=local_bits,
        at_positions=_drawn_at if is_threefry(op.operands[0].type.dtype) else None,
    )


def local_bits(ctx: Any, op: Op, args: Sequence[Any]) -> Sequence[Any]:
    """Tile of the global random bits."""
    result, rank = result_shape(op), len(shape_of(op, 0))
    shape = tuple(n // ctx.tiles(d) for d, n in enumerate(result))
    drawn = range(rank, len(result))
    if all(ctx.tiles(d) == 1 for d in drawn):
        return bind(op, _localize(op.params, [], [shape]), args)
    starts = [
        jnp.asarray(ctx.tile_index(d) * shape[d] if ctx.tiles(d) > 1 else 0, jnp.int32)
        for d in drawn
    ]
    if not is_threefry(op.operands[0].type.dtype):
        (every,) = bind(op, _without_mark(op.params), args)
        keep = [jnp.int32(0)] * rank + starts
        return [lax.dynamic_slice(every, keep, shape)]
    rows = [
        lax.broadcasted_iota(jnp.uint32, shape[rank:], i) + start.astype(jnp.uint32)
        for i, start in enumerate(starts)
    ]
    return [_bits_at(op, args[0], rows)]


def _drawn_at(op: Op, args: Sequence[Any], positions: Sequence[Any]) -> Sequence[Any]:
    """Bits of the whole array at some positions, from one tile of the keys."""
    result, rank = result_shape(op), len(shape_of(op, 0))
    pairs = zip(positions, result, strict=True)
    shape = tuple(n if at is None else at.shape[0] for at, n in pairs)
    if all(at is None for at in positions[rank:]):
        return bind(op, _localize(op.params, [], [shape]), args)
    rows = [
        lax.broadcasted_iota(jnp.uint32, shape[rank:], i)
        if at is None
        else lax.broadcast_in_dim(at.astype(jnp.uint32), shape[rank:], (i,))
        for i, at in enumerate(positions[rank:])
    ]
    return [_bits_at(op, args[0], rows)]


def _bits_at(op: Op, key: Any, rows: Sequence[Any]) -> Any:
    """Threefry bits of the whole array at some positions.

    Args:
      rows: uint32 positions along each drawn dim, of the shape to draw.
    """
    drawn, rank = op.params["shape"], len(shape_of(op, 0))
    counter = jnp.zeros(rows[0].shape, jnp.uint32)
    for i, at in enumerate(rows):
        counter = counter + at * jnp.uint32(math.prod(drawn[i + 1 :]))

    def draw(data: jax.Array) -> jax.Array:
        high = jnp.zeros_like(counter)
        first, second = (jnp.broadcast_to(word, counter.shape) for word in data)
        x0, x1 = threefry2x32_p.bind(first, second, high, counter)
        width = op.params["bit_width"]
        if width == 64:
            wide = jnp.uint64
            bits: jax.Array = (x0.astype(wide) << wide(32)) | x1.astype(wide)
        else:
            bits = lax.convert_element_type(x0 ^ x1, jnp.dtype(f"uint{width}"))
        return bits

    data = jax.random.key_data(key)
    for _ in range(rank):
        draw = jax.vmap(draw)
    return draw(data)
