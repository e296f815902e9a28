"""Gather and scatter. A dim addressed by indices is tiled with masked local indices.

Each device gathers the rows inside of its tile and zeros for all further ones: the result is a
partial sum. A scatter drops the updates outside of its tile. Out-of-bounds indices follow the
global bounds: clipping precedes the subtraction of the tile's offset, and only the first tile
inserts the fill value.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from partir_search.ir.bind import bind
from partir_search.ir.core import Op, Operand, Shape
from partir_search.ir.kind import Kind
from partir_search.ir.role import Role
from partir_search.ir.rule import NONE, OpRule
from partir_search.rules.construct import NewOp, combined
from partir_search.rules.registry import register, result_shape, shape_of

Mode = lax.GatherScatterMode


class _Factors:
    """Factors of a rule under construction."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.reducers: list[str] = []

    def new(self, size: int, reducer: str = "") -> int:
        self.sizes.append(size)
        self.reducers.append(reducer)
        return len(self.sizes) - 1


def _batch_factors(
    f: _Factors, index_shape: Shape, batching: Sequence[int], reducer: str
) -> list[int]:
    """A factor per index dim but the last; factors not shared with the operand get `reducer`."""
    return [f.new(n, "" if i in batching else reducer) for i, n in enumerate(index_shape[:-1])]


@register("gather", role=Role.GATHER)
def gather(op: Op) -> OpRule:
    """Index dims pass to the result, offset dims pass through, indexed dims are summed."""
    dn = op.params["dimension_numbers"]
    operand, indices, result = shape_of(op, 0), shape_of(op, 1), result_shape(op)
    f = _Factors()
    batch = _batch_factors(f, indices, (), "")
    operand_dims, result_dims = [NONE] * len(operand), [NONE] * len(result)
    places = [d for d in range(len(result)) if d not in dn.offset_dims]
    for place, factor in zip(places, batch, strict=True):
        result_dims[place] = factor
    for d, i in zip(dn.operand_batching_dims, dn.start_indices_batching_dims, strict=True):
        operand_dims[d] = batch[i]
    removed = {*dn.collapsed_slice_dims, *dn.operand_batching_dims}
    window = [d for d in range(len(operand)) if d not in removed]
    full = _full_slices(op)
    for place, d in zip(dn.offset_dims, window, strict=True):
        if d in full:
            operand_dims[d] = result_dims[place] = f.new(operand[d])
    inexact = jnp.issubdtype(op.results[0].type.dtype, np.inexact)
    indexed = set()
    for d in _single(op):
        if _summable(op.results[0].type.dtype):
            operand_dims[d] = f.new(operand[d], "sum")
            indexed.add(operand_dims[d])
    return OpRule(
        Kind.GATHER,
        sizes=tuple(f.sizes),
        operands=(tuple(operand_dims), (*batch, NONE)),
        results=(tuple(result_dims),),
        reducers=tuple(f.reducers),
        linear=((0,),) if inexact and op.params.get("fill_value") is None else (),
        flops_per_point=0.0,
        indexed=frozenset(indexed),
        localize=functools.partial(_local_slice_sizes, _full_slices(op)),
        local=local_gather,
        implied_params=_told(
            dn.collapsed_slice_dims, dn.start_index_map, dn.offset_dims, len(result)
        ),
    )


def _told(
    cut: Sequence[int], indexed: Sequence[int], window: Sequence[int], rank: int
) -> frozenset[str]:
    """Parameters implied by types; dimension numbers among them for rows of the first dim."""
    rows = tuple(cut) == tuple(indexed) == (0,)
    told = {"fill_value", "slice_sizes"}
    if rows and list(window) == list(range(rank - len(window), rank)):
        told.add("dimension_numbers")
    return frozenset(told)


def _single(op: Op) -> list[int]:
    """Dims of a gather's operand at indices of which each slice has one element."""
    starts, sizes = op.params["dimension_numbers"].start_index_map, op.params["slice_sizes"]
    return sorted(d for d in starts if sizes[d] == 1)


def _summable(dtype: Any) -> bool:
    return bool(jnp.issubdtype(dtype, np.number))


def _full_slices(op: Op) -> frozenset[int]:
    """Dims of the operand covered completely by each slice.

    Only the index 0 of such a dim is within the bounds, of the dim and of each tile.
    """
    single, sizes = _single(op), op.params["slice_sizes"]
    pairs = enumerate(zip(sizes, shape_of(op, 0), strict=True))
    return frozenset(d for d, (n, m) in pairs if n == m and d not in single)


def _local_slice_sizes(
    full: frozenset[int], params: Mapping[str, Any], operands: Sequence[Shape], _: Sequence[Shape]
) -> dict[str, Any]:
    """Params with the slice sizes of the local operand."""
    pairs = enumerate(zip(params["slice_sizes"], operands[0], strict=True))
    return {**params, "slice_sizes": tuple(m if d in full else n for d, (n, m) in pairs)}


def local_gather(ctx: Any, op: Op, args: Sequence[Any]) -> Sequence[Any]:
    """Rows gathered from this tile; zeros for indices outside of the tile."""
    operand, indices = args
    dn, rule = op.params["dimension_numbers"], gather(op)
    params = _local_slice_sizes(_full_slices(op), op.params, [operand.shape], [])
    shape = _bounds(op)
    tiled = [d for d in _single(op) if rule.operands[0][d] >= 0]
    tiled = [
        d for d in tiled if ctx.tiles(rule.operands[0][d]) > 1 or shape[d] != shape_of(op, 0)[d]
    ]
    mode = Mode.from_any(op.params["mode"])
    if not tiled:
        places = _clipped(op, indices) if mode == Mode.CLIP else indices
        return bind(op, params, (operand, places))
    mask, first = jnp.bool_(True), jnp.bool_(True)
    inside = jnp.bool_(True)
    columns = [indices[..., k] for k in range(indices.shape[-1])]
    for k, d in enumerate(dn.start_index_map):
        limit = max(shape[d] - op.params["slice_sizes"][d], 0)
        if mode == Mode.CLIP:
            columns[k] = jnp.clip(columns[k], 0, limit)
        else:
            inside = inside & (columns[k] >= 0) & (columns[k] <= limit)
        if d in tiled:
            size, tile = operand.shape[d], ctx.tile_index(rule.operands[0][d])
            local = columns[k] - tile.astype(columns[k].dtype) * size
            mask = mask & (local >= 0) & (local < size)
            first = first & (tile == 0)
            columns[k] = jnp.clip(local, 0, size - 1)
    params["mode"] = Mode.CLIP
    rows = bind(op, params, (operand, jnp.stack(columns, -1)))[0]
    spread = [d for d in range(rows.ndim) if d not in dn.offset_dims]

    def over_rows(flag: Any) -> Any:
        if not flag.ndim:
            return flag
        shape = [1] * rows.ndim
        for place, n in zip(spread, flag.shape, strict=True):
            shape[place] = n
        return flag.reshape(shape)

    zero = jnp.zeros((), rows.dtype)
    rows = jnp.where(over_rows(mask & inside), rows, zero)
    if mode == Mode.FILL_OR_DROP:
        fill = jnp.where(first, _fill_value(op, rows.dtype), zero)
        rows = jnp.where(over_rows(inside), rows, fill)
    return [rows]


def _clipped(op: Op, indices: Any) -> Any:
    """Indices of a gather in bounds, if slices have several elements of a dim.

    XLA makes one dynamic slice of two, and clamps its start alone: a tile of a slice that was moved
    into the bounds is read elsewhere.
    """
    sizes, shape = op.params["slice_sizes"], _bounds(op)
    starts = op.params["dimension_numbers"].start_index_map
    if all(sizes[d] in (1, shape[d]) for d in starts):
        return indices
    largest = np.iinfo(indices.dtype).max
    most = [min(max(shape[d] - sizes[d], 0), largest) for d in starts]
    return jnp.clip(indices, 0, np.array(most, indices.dtype))


def _bounds(op: Op) -> Shape:
    """Extents of the operand before padding: bounds of the indices."""
    return op.params.get("bounds", shape_of(op, 0))  # type: ignore[no-any-return]


def _fill_value(op: Op, dtype: Any) -> Any:
    fill = op.params.get("fill_value")
    if fill is None:
        if jnp.issubdtype(dtype, jnp.inexact):
            fill = np.nan
        elif jnp.issubdtype(dtype, jnp.signedinteger):
            fill = np.iinfo(dtype).min
        else:
            fill = np.iinfo(dtype).max
    return jnp.asarray(fill, dtype)


_SCATTER_MONOID = {"scatter-add": "sum", "scatter-max": "max", "scatter-min": "min"}
_COMBINERS = {
    "scatter": None,
    "scatter-add": lax.add_p,
    "scatter-max": lax.max_p,
    "scatter-min": lax.min_p,
    "scatter-mul": lax.mul_p,
    "scatter-sub": lax.sub_p,
}


def scatter_monoid(op: Op) -> str:
    """Monoid of a scatter's updates across devices; "" for an op without such a collective."""
    return _SCATTER_MONOID.get(op.prim, "")


def scatter_combiner(op: Op) -> Callable[[Operand, Operand], NewOp] | None:
    """Function of operand and update to their combination; None for a scatter that overwrites."""
    primitive = _COMBINERS[op.prim]
    return None if primitive is None else functools.partial(combined, primitive)


@register(*_COMBINERS, role=Role.SCATTER)
def scatter(op: Op) -> OpRule:
    """Indexed dims pass through with masked updates; update dims are combined by a monoid."""
    dn = op.params["dimension_numbers"]
    operand, indices, updates = (shape_of(op, i) for i in range(3))
    monoid = scatter_monoid(op)
    f = _Factors()
    batch = _batch_factors(f, indices, dn.scatter_indices_batching_dims, monoid or "sum")
    free = [i for i in range(len(batch)) if i not in dn.scatter_indices_batching_dims]
    blocked = frozenset() if monoid else frozenset(batch[i] for i in free)
    operand_dims, update_dims = [NONE] * len(operand), [NONE] * len(updates)
    places = [d for d in range(len(updates)) if d not in dn.update_window_dims]
    for place, factor in zip(places, batch, strict=True):
        update_dims[place] = factor
    for d, i in zip(dn.operand_batching_dims, dn.scatter_indices_batching_dims, strict=True):
        operand_dims[d] = batch[i]
    window = _window_dims(op)
    for d, place in window.items():
        single = operand[d] == 1 and d in dn.scatter_dims_to_operand_dims
        if updates[place] == operand[d] and not single:  # at 0 in the dim and in each tile
            operand_dims[d] = update_dims[place] = f.new(operand[d])
    indexed = set()
    for d in dn.inserted_window_dims:
        if d in dn.scatter_dims_to_operand_dims:
            operand_dims[d] = f.new(operand[d])
            indexed.add(operand_dims[d])
    # One block for each element of the batch: a `dynamic_update_slice` under `jax.vmap`.
    block = bool(dn.operand_batching_dims and window) and all(f.sizes[batch[i]] == 1 for i in free)
    return OpRule(
        Kind.UPDATE if block else Kind.SCATTER,
        sizes=tuple(f.sizes),
        update_operand=2,
        operands=(tuple(operand_dims), (*batch, NONE), tuple(update_dims)),
        results=(tuple(operand_dims),),
        reducers=tuple(f.reducers),
        blocked=blocked,
        linear=((0, 2),) if op.prim == "scatter-add" else (),
        one_hot=op.prim == "scatter-add"
        and not dn.update_window_dims
        and all(f.sizes[batch[i]] == 1 for i in free),
        flops_per_point=0.0,
        elementwise=block,
        indexed=frozenset(indexed),
        local=local_scatter,
        implied_params=_told(
            *(dn.inserted_window_dims, dn.scatter_dims_to_operand_dims),
            *(dn.update_window_dims, len(updates)),
        ),
    )


def _window_dims(op: Op) -> dict[int, int]:
    """Dims of a scatter's operand covered by windows, and their dims of the updates."""
    dn = op.params["dimension_numbers"]
    removed = {*dn.inserted_window_dims, *dn.operand_batching_dims}
    window = [d for d in range(len(shape_of(op, 0))) if d not in removed]
    return dict(zip(window, dn.update_window_dims, strict=True))


def local_scatter(ctx: Any, op: Op, args: Sequence[Any]) -> Sequence[Any]:
    """Scatter of the updates inside of this tile."""
    operand, indices, updates = args
    params, rule = dict(op.params), scatter(op)
    summed = [f for f, r in enumerate(rule.reducers) if r == "sum" and ctx.tiles(f) > 1]
    for f in summed:  # the sum must contain the operand once
        operand = jnp.where(ctx.is_first(f), operand, jnp.zeros((), operand.dtype))
    indices, params["mode"] = _in_tile(ctx, op, operand, indices)
    operand = _kept_on_cpu(operand) if ctx.mesh else operand
    return bind(op, params, (operand, indices, updates))


def added_to_rows(ctx: Any, op: Op, total: Any, indices: Any, updates: Any) -> Any:
    """Tile of a total with the updates of a scatter added, in place of the scatter's operand.

    Args:
      op: an adding scatter.
      total: of the operand's shape, of any type; a partial sum if the updates' dims are tiled.
    """
    indices, mode = _in_tile(ctx, op, total, indices)
    return lax.scatter_add(
        _kept_on_cpu(total) if ctx.mesh else total,
        indices,
        updates.astype(total.dtype),
        op.params["dimension_numbers"],
        indices_are_sorted=op.params["indices_are_sorted"],
        unique_indices=op.params["unique_indices"],
        mode=mode,
    )


def _in_tile(ctx: Any, op: Op, operand: Any, indices: Any) -> tuple[Any, Any]:
    """Indices in a tile of a scatter's operand, and the mode of indices beyond the tile."""
    dn, rule, mode = op.params["dimension_numbers"], scatter(op), op.params["mode"]
    bounds = _bounds(op)
    tiled = [d for d in dn.inserted_window_dims if rule.operands[0][d] >= 0]
    tiled = [
        d for d in tiled if ctx.tiles(rule.operands[0][d]) > 1 or bounds[d] != shape_of(op, 0)[d]
    ]
    if not tiled:
        return indices, mode
    clip, window = Mode.from_any(mode) == Mode.CLIP, _window_dims(op)
    columns = [indices[..., k] for k in range(indices.shape[-1])]
    for k, d in enumerate(dn.scatter_dims_to_operand_dims):
        if clip:
            size = shape_of(op, 2)[window[d]] if d in window else 1
            columns[k] = jnp.clip(columns[k], 0, max(bounds[d] - size, 0))
        if d in tiled:
            size = operand.shape[d]
            tile = ctx.tile_index(rule.operands[0][d]).astype(columns[k].dtype)
            local = columns[k] - tile * size
            columns[k] = jnp.where((local >= 0) & (local < size), local, size)
    return jnp.stack(columns, -1), Mode.FILL_OR_DROP


def _kept_on_cpu(x: Any) -> Any:
    """`x` behind an optimization barrier on CPUs.

    XLA:CPU of jaxlib 0.10.2 scatters in place into an operand inside of a loop although a
    collective has still to read the operand; jaxlib 0.12 does not.
    """
    return lax.platform_dependent(x, cpu=lax.optimization_barrier, default=lambda x: x)
