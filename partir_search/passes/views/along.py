"""Writes index maps of one dim whose elements stay near: shifts, steps, gaps, repeats, others."""

from __future__ import annotations

import dataclasses

import numpy as np

from partir_search.ir.bands import index_map
from partir_search.ir.boundaries import ZERO, Ints
from partir_search.ir.core import Op, Value
from partir_search.passes.views.indexed import Indexed
from partir_search.passes.views.maps import FILLER, form_of
from partir_search.passes.views.view import View, whole, zeros_only
from partir_search.passes.views.write import Writer
from partir_search.rules.construct import broadcast, own, padded, reshaped, sliced, zero
from partir_search.rules.remaps import REMAP, band
from partir_search.rules.shifts import LITTLE

LEAST = 8  # elements of a dim that is read so


def near(sources: Ints, n: int) -> bool:
    """Tells whether elements of a map into a dim of `n` lie where its tiles lie."""
    if not len(sources) or min(n, len(sources)) < LEAST:
        return False
    form = form_of(sources, n)
    if form is not None and form.near:
        return True
    return band(sources, n).off <= LITTLE * n


def along(writer: Writer, op: Op, x: Value, dim: int, sources: Ints) -> Value:
    """`x` with a dim read through a map of which `near` holds; zeros where it has `FILLER`."""
    n, m = x.type.shape[dim], len(sources)
    if n == m and (sources == np.arange(n)).all():
        return x
    form = form_of(sources, n)
    if form is not None and not (form.turns and ZERO in (form.below, form.above)):
        view = dataclasses.replace(whole(x), filler=zero(x.type))
        return writer.view(op, view.mapped(dim, lambda _: sources))
    shape = (*x.type.shape[:dim], m, *x.type.shape[dim + 1 :])
    held = np.flatnonzero(sources != FILLER)
    steps, gaps = np.diff(sources[held]), np.diff(held)
    if len(held) == m and (steps == steps[0]).all() and steps[0] > 1:
        return _every(writer, op, x, dim, sources)
    if (steps == 1).all() and len(gaps) and (gaps == gaps[0]).all():
        return _between(writer, op, x, dim, sources)
    if m % n == 0 and (sources == np.arange(m) // (m // n)).all():
        return _repeats(writer, op, x, dim, m // n)
    return writer.put(op, own(REMAP, (x,), shape, dimension=dim, places=index_map(sources)))


def _every(writer: Writer, op: Op, x: Value, dim: int, sources: Ints) -> Value:
    """A slice in steps."""
    first, last, step = int(sources[0]), int(sources[-1]), int(sources[1] - sources[0])
    shape = list(x.type.shape)
    starts, ends, strides = [0] * len(shape), list(shape), [1] * len(shape)
    starts[dim], ends[dim], strides[dim] = first, last + 1, step
    return writer.put(op, sliced(x, starts, ends, strides))


def _between(writer: Writer, op: Op, x: Value, dim: int, sources: Ints) -> Value:
    """A pad, with zeros between elements."""
    held = np.flatnonzero(sources != FILLER)
    first, last = int(sources[held[0]]), int(sources[held[-1]])
    rest = x.type.shape
    if (first, last) != (0, rest[dim] - 1):
        form = np.arange(first, last + 1)
        x = writer.view(op, whole(x).mapped(dim, lambda _: form))
    inner, m = int(held[1] - held[0]) - 1, len(sources)
    ends = (int(held[0]), m - 1 - int(held[-1]), inner)
    config = [ends if d == dim else (0, 0, 0) for d in range(len(rest))]
    return writer.put(op, padded(x, zero(x.type), config))


def _repeats(writer: Writer, op: Op, x: Value, dim: int, each: int) -> Value:
    shape = x.type.shape
    wide = (*shape[: dim + 1], each, *shape[dim + 1 :])
    dims = tuple(d if d <= dim else d + 1 for d in range(len(shape)))
    made = writer.put(op, broadcast(x, wide, dims))
    return writer.put(op, reshaped(made, (*shape[:dim], shape[dim] * each, *shape[dim + 1 :])))


def looked_up(writer: Writer, op: Op, found: Indexed, view: View) -> bool:
    """Writes a gather; False if its places lie far from the elements that they are for.

    Args:
      view: the array that is looked up as a view of another one.
    """
    x, (result,) = op.operands[0], op.results
    assert isinstance(x, Value)
    shape = x.type.shape
    changed = {
        d: at for d, at in found.maps.items() if len(at) != shape[d] or (np.diff(at) != 1).any()
    }
    if not any(near(at, shape[d]) for d, at in changed.items()):
        return False
    if len(changed) == 1 and view.base is not None and zeros_only(view):
        ((dim, at),) = changed.items()
        alone = all(m is None for d, m in enumerate(view.maps) if d != dim)
        sources = view.sources(dim)[at]
        if alone and near(sources, view.base.type.shape[dim]):
            x, changed = view.base, {dim: sources}
    for d, at in changed.items():
        x = along(writer, op, x, d, at)
    found.written(writer, op, x, result)
    return True
