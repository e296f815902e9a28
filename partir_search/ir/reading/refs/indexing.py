"""Partial reads and writes of a ref as array ops: slices, dynamic slices, gathers, scatters.

A ref is accessed through indexers, one per `.at[...]`: per dim a slice (start, size, stride) or an
integer, all integers of one common shape. Results have the layout of numpy's advanced indexing. A
dim of the ref indexed by an iota, as made by vmap, is mapped over, as in the vmap of the same
program without refs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

Label = tuple[str, int]  # ("index", axis of the integers) or ("dim", dim of the array)


def take(x: jax.Array, indexers: Sequence[Any], counts: Sequence[Any]) -> jax.Array:
    """Elements of `x` selected by the indexers.

    Args:
      indexers: objects with `indices`, applied one after another.
      counts: same structure; the entry of an integer is the axis along which it is an iota, or
        None.
    """
    for indexer, count in zip(indexers, counts, strict=True):
        x = _take(x, indexer.indices, count.indices)
    return x


def put(
    x: jax.Array, indexers: Sequence[Any], counts: Sequence[Any], value: jax.Array, add: bool
) -> jax.Array:
    """`x` with `value` written or added to the elements selected by the indexers."""
    if not indexers:
        return lax.add(x, value) if add else value
    indices, count = indexers[0].indices, counts[0].indices
    if len(indexers) > 1:
        inner = _take(x, indices, count)
        value, add = put(inner, indexers[1:], counts[1:], value, add), False
    return _put(x, indices, count, value, add)


def is_slice(index: Any) -> bool:
    return hasattr(index, "stride")


def _take(x: jax.Array, indices: Sequence[Any], counts: Sequence[Any]) -> jax.Array:
    if not _arrays(indices):
        return lax.squeeze(_window(x, indices), _scalars(indices))
    if _moving(indices):
        x, indices = _window(x, _slices_only(x, indices)), _whole_slices(indices)
    at = _indexing(indices)
    return _Mapped(x.shape, at, counts).take(x)


def _put(
    x: jax.Array, indices: Sequence[Any], counts: Sequence[Any], value: jax.Array, add: bool
) -> jax.Array:
    if not _arrays(indices):
        value = lax.expand_dims(value, _scalars(indices))
        if value.shape == x.shape and not _moving(indices):  # all of it
            return lax.add(x, value) if add else value
        return _put_window(x, indices, value, add)
    if _moving(indices):
        slices = _slices_only(x, indices)
        inner = _put(_window(x, slices), _whole_slices(indices), counts, value, add)
        return _put_window(x, slices, inner, False)
    return _Mapped(x.shape, _indexing(indices), counts).put(x, value, add)


def _arrays(indices: Sequence[Any]) -> bool:
    return any(not is_slice(i) and jax.numpy.ndim(i) for i in indices)


def _scalars(indices: Sequence[Any]) -> tuple[int, ...]:
    return tuple(d for d, i in enumerate(indices) if not is_slice(i))


def _moving(indices: Sequence[Any]) -> bool:
    """True if the start of a slice is known at run time only."""
    return any(is_slice(i) and not isinstance(i.start, int) for i in indices)


class _Slice:
    """Slice of one dim."""

    def __init__(self, start: Any, size: int, stride: int = 1) -> None:
        self.start, self.size, self.stride = start, size, stride


def _slices_only(x: jax.Array, indices: Sequence[Any]) -> list[Any]:
    return [i if is_slice(i) else _Slice(0, n) for i, n in zip(indices, x.shape, strict=True)]


def _whole_slices(indices: Sequence[Any]) -> list[Any]:
    return [_Slice(0, i.size) if is_slice(i) else i for i in indices]


def _indexing(indices: Sequence[Any]) -> list[Any]:
    """The indices in numpy's notation."""
    return [_python_slice(i) if is_slice(i) else i for i in indices]


def _python_slice(one: Any) -> slice:
    return slice(one.start, one.start + _span(one), one.stride)


def _span(one: Any) -> int:
    return max(0, int((one.size - 1) * one.stride + 1))


def _window(x: jax.Array, indices: Sequence[Any]) -> jax.Array:
    """Slices and single points of each dim; points keep their dim."""
    slices = [i if is_slice(i) else _Slice(i, 1) for i in indices]
    spans, strides = [_span(p) for p in slices], [p.stride for p in slices]
    if all(isinstance(p.start, int) for p in slices):
        ends = [p.start + span for p, span in zip(slices, spans, strict=True)]
        if tuple(spans) == x.shape and max(strides, default=1) == 1:
            return x
        return lax.slice(x, [p.start for p in slices], ends, strides)
    out = lax.dynamic_slice(x, _starts(slices), spans, allow_negative_indices=_signed(slices))
    return lax.slice(out, [0] * x.ndim, spans, strides) if max(strides) > 1 else out


def _starts(slices: Sequence[Any]) -> list[Any]:
    int32 = np.dtype(np.int32)
    starts = [p.start for p in slices]
    return [
        np.int32(s) if isinstance(s, int) else lax.convert_element_type(s, int32) for s in starts
    ]


def _signed(slices: Sequence[Any]) -> list[bool]:
    """True for starts known at run time only: they may count from the end."""
    return [not isinstance(p.start, int) for p in slices]


def _put_window(x: jax.Array, indices: Sequence[Any], value: jax.Array, add: bool) -> jax.Array:
    slices = [i if is_slice(i) else _Slice(i, 1) for i in indices]
    steps = tuple(slice(None, None, p.stride) for p in slices)
    dense = [_Slice(p.start, _span(p)) for p in slices]
    if max((p.stride for p in slices), default=1) > 1:
        at = _window(x, dense).at[steps]
        value = at.add(value) if add else at.set(value)
    elif add:
        value = lax.add(_window(x, dense), value)
    return lax.dynamic_update_slice(x, value, _starts(dense), allow_negative_indices=_signed(dense))


class _Mapped:
    """Numpy indexing, mapped over dims indexed by an iota."""

    def __init__(self, shape: Sequence[int], at: Sequence[Any], counts: Sequence[Any]) -> None:
        self.at = dict(enumerate(at))
        integers = [d for d, i in self.at.items() if not isinstance(i, slice)]
        rank = max(jax.numpy.ndim(self.at[d]) for d in integers)
        self.counts: dict[int, int] = {}  # dim to axis of the integers
        for d in integers:
            axis = counts[d] if jax.numpy.ndim(self.at[d]) == rank else None
            if axis is None or axis in self.counts.values():
                continue
            if self.at[d].shape[axis] == shape[d]:
                self.counts[d] = axis
        self.axes = list(range(rank))
        self.order = _order(self.at, list(self.at), self.axes)

    def take(self, x: jax.Array) -> jax.Array:
        out, labels = self._take(x, list(self.at), self.at, self.axes, list(self.counts.items()))
        return _transposed(out, labels, self.order)

    def put(self, x: jax.Array, value: jax.Array, add: bool) -> jax.Array:
        pairs = list(self.counts.items())
        return self._put(x, list(self.at), self.at, self.axes, pairs, value, self.order, add)

    def _split(
        self, dims: list[int], at: dict[int, Any], axes: list[int], dim: int, axis: int
    ) -> tuple[Any, ...]:
        """Dims and axes without one dim and one axis of the integers; map axes of the integers."""
        rest = [d for d in dims if d != dim]
        place = axes.index(axis)
        arrays = [at[d] for d in rest if not isinstance(at[d], slice)]
        maps = [place if jax.numpy.ndim(a) else None for a in arrays]

        def rebuilt(values: Sequence[Any]) -> dict[int, Any]:
            left = iter(values)
            return {d: at[d] if isinstance(at[d], slice) else next(left) for d in rest}

        return rest, [k for k in axes if k != axis], arrays, maps, rebuilt

    def _take(
        self,
        x: jax.Array,
        dims: list[int],
        at: dict[int, Any],
        axes: list[int],
        pairs: list[tuple[int, int]],
    ) -> tuple[jax.Array, list[Label]]:
        if not pairs:
            return x[tuple(at[d] for d in dims)], _order(at, dims, axes)
        (dim, axis), *more = pairs
        rest, left, arrays, maps, rebuilt = self._split(dims, at, axes, dim, axis)
        labels: list[Label] = []

        def inner(x: jax.Array, arrays: list[Any]) -> jax.Array:
            out, labels[:] = self._take(x, rest, rebuilt(arrays), left, more)
            return out

        out = jax.vmap(inner, in_axes=(dims.index(dim), maps))(x, arrays)
        return out, [("index", axis), *labels]

    def _put(
        self,
        x: jax.Array,
        dims: list[int],
        at: dict[int, Any],
        axes: list[int],
        pairs: list[tuple[int, int]],
        value: jax.Array,
        labels: list[Label],
        add: bool,
    ) -> jax.Array:
        if not pairs:
            value = _transposed(value, labels, _order(at, dims, axes))
            if all(isinstance(i, slice) for i in at.values()) and value.shape == x.shape:
                return lax.add(x, value) if add else value
            where = x.at[tuple(at[d] for d in dims)]
            return where.add(value) if add else where.set(value)
        (dim, axis), *more = pairs
        rest, left, arrays, maps, rebuilt = self._split(dims, at, axes, dim, axis)
        mapped = labels.index(("index", axis))
        inner_labels = labels[:mapped] + labels[mapped + 1 :]

        def inner(x: jax.Array, arrays: list[Any], value: jax.Array) -> jax.Array:
            return self._put(x, rest, rebuilt(arrays), left, more, value, inner_labels, add)

        place = dims.index(dim)
        return jax.vmap(inner, in_axes=(place, maps, mapped), out_axes=place)(x, arrays, value)


def _order(at: dict[int, Any], dims: list[int], axes: list[int]) -> list[Label]:
    """Dims of the result of numpy indexing: integers are adjacent if no slice separates them."""
    slices: list[Label] = [("dim", d) for d in dims if isinstance(at[d], slice)]
    integers = [p for p, d in enumerate(dims) if not isinstance(at[d], slice)]
    space: list[Label] = [("index", k) for k in axes]
    if not integers:
        return slices
    if integers[-1] - integers[0] >= len(integers):  # slices between them
        return space + slices
    return slices[: integers[0]] + space + slices[integers[0] :]


def _transposed(x: jax.Array, labels: list[Label], wanted: list[Label]) -> jax.Array:
    if labels == wanted:
        return x
    return lax.transpose(x, [labels.index(label) for label in wanted])
