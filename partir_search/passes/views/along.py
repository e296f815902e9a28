"""Writes index maps of one dim with nearby sources: shifts, strides, gaps, repeats, bands."""

from __future__ import annotations

import dataclasses

import numpy as np

from partir_search.ir.bands import index_map
from partir_search.ir.boundaries import ZERO, Ints
from partir_search.ir.core import Op, Value
from partir_search.passes.views.indexed import Indexed
from partir_search.passes.views.maps import FILLER, shift_of
from partir_search.passes.views.view import View, identity_view, zeros_only
from partir_search.passes.views.write import Writer
from partir_search.rules.construct import broadcast, own, padded, reshaped, sliced, zero
from partir_search.rules.remaps import REMAP, band
from partir_search.rules.shifts import LITTLE

MIN_EXTENT = 8  # elements, in source and result, of a dim worth rewriting


def is_local_map(sources: Ints, n: int) -> bool:
    """True if elements of a map into a dim of `n` read mostly from the tile at their position."""
    if not len(sources) or min(n, len(sources)) < MIN_EXTENT:
        return False
    shift = shift_of(sources, n)
    if shift is not None and shift.is_local:
        return True
    return band(sources, n).off <= LITTLE * n


def read_dim(writer: Writer, op: Op, x: Value, dim: int, sources: Ints) -> Value:
    """Returns `x` with one dim read through a map; zeros where the map has `FILLER`.

    Args:
      sources: a map for which `is_local_map` holds.
    """
    n, m = x.type.shape[dim], len(sources)
    if n == m and (sources == np.arange(n)).all():
        return x
    shift = shift_of(sources, n)
    if shift is not None and not (shift.has_boundary and ZERO in (shift.below, shift.above)):
        view = dataclasses.replace(identity_view(x), filler=zero(x.type))
        return writer.view(op, view.mapped(dim, lambda _: sources))
    shape = (*x.type.shape[:dim], m, *x.type.shape[dim + 1 :])
    read_at = np.flatnonzero(sources != FILLER)
    steps, gaps = np.diff(sources[read_at]), np.diff(read_at)
    if len(read_at) == m and (steps == steps[0]).all() and steps[0] > 1:
        return _strided_slice(writer, op, x, dim, sources)
    if (steps == 1).all() and len(gaps) and (gaps == gaps[0]).all():
        return _interior_pad(writer, op, x, dim, sources)
    if m % n == 0 and (sources == np.arange(m) // (m // n)).all():
        return _repeat(writer, op, x, dim, m // n)
    return writer.put(op, own(REMAP, (x,), shape, dimension=dim, places=index_map(sources)))


def _strided_slice(writer: Writer, op: Op, x: Value, dim: int, sources: Ints) -> Value:
    """Returns `x` sliced along a dim with a stride."""
    first, last, step = int(sources[0]), int(sources[-1]), int(sources[1] - sources[0])
    shape = list(x.type.shape)
    starts, ends, strides = [0] * len(shape), list(shape), [1] * len(shape)
    starts[dim], ends[dim], strides[dim] = first, last + 1, step
    return writer.put(op, sliced(x, starts, ends, strides))


def _interior_pad(writer: Writer, op: Op, x: Value, dim: int, sources: Ints) -> Value:
    """Returns `x` padded along a dim, with zeros between its elements."""
    read_at = np.flatnonzero(sources != FILLER)
    first, last = int(sources[read_at[0]]), int(sources[read_at[-1]])
    rest = x.type.shape
    if (first, last) != (0, rest[dim] - 1):
        crop = np.arange(first, last + 1)
        x = writer.view(op, identity_view(x).mapped(dim, lambda _: crop))
    inner, m = int(read_at[1] - read_at[0]) - 1, len(sources)
    ends = (int(read_at[0]), m - 1 - int(read_at[-1]), inner)
    config = [ends if d == dim else (0, 0, 0) for d in range(len(rest))]
    return writer.put(op, padded(x, zero(x.type), config))


def _repeat(writer: Writer, op: Op, x: Value, dim: int, each: int) -> Value:
    """Returns `x` with each element repeated `each` times along a dim."""
    shape = x.type.shape
    wide = (*shape[: dim + 1], each, *shape[dim + 1 :])
    dims = tuple(d if d <= dim else d + 1 for d in range(len(shape)))
    made = writer.put(op, broadcast(x, wide, dims))
    return writer.put(op, reshaped(made, (*shape[:dim], shape[dim] * each, *shape[dim + 1 :])))


def write_gather(writer: Writer, op: Op, indexed: Indexed, view: View) -> bool:
    """Writes a gather as reads of single dims; False if elements read far from their position.

    Args:
      indexed: index maps of the gather.
      view: view of the gathered array.
    """
    x, (result,) = op.operands[0], op.results
    assert isinstance(x, Value)
    shape = x.type.shape
    changed = {
        d: at for d, at in indexed.maps.items() if len(at) != shape[d] or (np.diff(at) != 1).any()
    }
    if not any(is_local_map(at, shape[d]) for d, at in changed.items()):
        return False
    if len(changed) == 1 and view.base is not None and zeros_only(view):
        ((dim, at),) = changed.items()
        alone = all(m is None for d, m in enumerate(view.maps) if d != dim)
        sources = view.sources(dim)[at]
        if alone and is_local_map(sources, view.base.type.shape[dim]):
            x, changed = view.base, {dim: sources}
    for d, at in changed.items():
        x = read_dim(writer, op, x, d, at)
    indexed.write_selection(writer, op, x, result)
    return True
