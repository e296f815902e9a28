"""Views: values of which each element is an element of one base value, or a filler."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from partir_search.ir.boundaries import Ints
from partir_search.ir.core import Literal, Op, Operand, Value
from partir_search.ir.role import Role
from partir_search.passes.views.maps import FILLER, Shift, identity, shift_of
from partir_search.rules.construct import zero
from partir_search.rules.registry import role_of

MAX_EXTENT = 1 << 22  # longest dim for which maps are made

Map = Ints | None  # None: the dim as it is


@dataclasses.dataclass(frozen=True, slots=True)
class View:
    """A value as a base value read through one index map per dim.

    Attributes:
      base: value read; None if all elements are the filler.
      maps: by dim; None for an unchanged dim.
      filler: element wherever a map has `FILLER`.
    """

    base: Value | None
    maps: tuple[Map, ...]
    filler: Literal | None = None

    def sources(self, dim: int) -> Ints:
        """Returns the map of a dim as an array."""
        found = self.maps[dim]
        if found is not None:
            return found
        assert self.base is not None
        return identity(self.base.type.shape[dim])

    def shifts(self) -> dict[int, Shift] | None:
        """Returns the shift of each changed dim; None if a map is no shift."""
        if self.base is None:
            return None
        found = {}
        for d, sources in enumerate(self.maps):
            if sources is not None:
                shift = shift_of(sources, self.base.type.shape[d])
                if shift is None:
                    return None
                found[d] = shift
        return found

    def mapped(self, dim: int, change: Callable[[Ints], Ints]) -> View:
        """Returns the view with one dim's map replaced by `change(map)`."""
        new = change(self.sources(dim))
        return dataclasses.replace(self, maps=_replaced(self.maps, dim, self._plain(dim, new)))

    def _plain(self, dim: int, sources: Ints) -> Map:
        """Returns None for the identity map of a dim, and any further map unchanged."""
        n = -1 if self.base is None else self.base.type.shape[dim]
        return None if len(sources) == n and (sources == identity(n)).all() else sources


def _replaced(maps: tuple[Map, ...], dim: int, new: Map) -> tuple[Map, ...]:
    return (*maps[:dim], new, *maps[dim + 1 :])


def identity_view(x: Value) -> View:
    """Returns a value as a view of itself."""
    return View(x, (None,) * len(x.type.shape))


def filled(shape: Sequence[int], filler: Literal | None) -> View:
    """Returns a view of a shape filled with one literal."""
    maps = (np.broadcast_to(np.int64(FILLER), (n,)) for n in shape)  # without memory of their own
    return View(None, tuple(maps), filler)


ViewLookup = Callable[[Operand], View | None]


def view_of(op: Op, view_of_operand: ViewLookup) -> View | None:
    """Returns the op's result as a view, or None.

    Args:
      view_of_operand: returns the view of an operand, or None.
    """
    rule = _VIEW_RULES.get(role_of(op))
    if rule is None or max(op.results[0].type.shape, default=0) > MAX_EXTENT:
        return None
    return rule(op, view_of_operand)


def _slice(op: Op, view_of_operand: ViewLookup) -> View | None:
    view = view_of_operand(op.operands[0])
    if view is None:
        return None
    p, shape = op.params, op.operands[0].type.shape
    strides = p["strides"] or (1,) * len(shape)
    for d, n in enumerate(shape):
        cut = slice(p["start_indices"][d], p["limit_indices"][d], strides[d])
        if (cut.start, cut.stop, cut.step) != (0, n, 1):
            view = view.mapped(d, lambda sources, cut=cut: sources[cut])  # type: ignore[misc]
    return view


def _pad(op: Op, view_of_operand: ViewLookup) -> View | None:
    view, filler = view_of_operand(op.operands[0]), op.operands[1]
    config = op.params["padding_config"]
    if view is None or not isinstance(filler, Literal) or any(inner for *_, inner in config):
        return None
    longer = any(low > 0 or high > 0 for low, high, _ in config)
    if longer and not compatible_fillers(view.filler, filler):
        return None
    for d, (low, high, _) in enumerate(config):
        if low or high:
            view = view.mapped(d, lambda s, low=low, high=high: _padded(s, low, high))  # type: ignore[misc]
    return dataclasses.replace(view, filler=filler) if longer else view


def _padded(sources: Ints, low: int, high: int) -> Ints:
    cut = sources[max(-low, 0) : len(sources) - max(-high, 0)]
    return np.pad(cut, (max(low, 0), max(high, 0)), constant_values=FILLER)


def _concatenate(op: Op, view_of_operand: ViewLookup) -> View | None:
    views = list(map(view_of_operand, op.operands))
    found = [v for v in views if v is not None]
    dim = int(op.params["dimension"])
    if len(found) < len(views) or not (view := concatenated(found, dim)):
        return None
    return view


def concatenated(views: Sequence[View], dim: int) -> View | None:
    """Returns views of one base laid end to end along `dim`, or None."""
    based = [v for v in views if v.base is not None]
    if not based:
        return None
    first = based[0]
    filler = next((v.filler for v in views if v.filler is not None), None)
    for v in views:
        if not compatible_fillers(v.filler, filler) or (
            v.base is not None and v.base is not first.base
        ):
            return None
        if v.base is not None and not equal_maps(v, first, but=dim):
            return None
    sources = np.concatenate([v.sources(dim) for v in views])
    return dataclasses.replace(first.mapped(dim, lambda _: sources), filler=filler)


def equal_maps(one: View, two: View, but: int) -> bool:
    """True if two views of one base have equal maps, `but` the named dim."""
    pairs = enumerate(zip(one.maps, two.maps, strict=True))
    return all(d == but or a is b or _equal(a, b) for d, (a, b) in pairs)


def _equal(a: Map, b: Map) -> bool:
    return a is not None and b is not None and np.array_equal(a, b)


def compatible_fillers(one: Literal | None, two: Literal | None) -> bool:
    """True if two fillers are equal or one is absent."""
    if one is None or two is None or one is two:
        return True
    return one.type.dtype == two.type.dtype and bool(one.number == two.number)


def _rev(op: Op, view_of_operand: ViewLookup) -> View | None:
    view = view_of_operand(op.operands[0])
    for d in op.params["dimensions"] if view is not None else ():
        assert view is not None
        view = view.mapped(d, lambda sources: sources[::-1])
    return view


def _broadcast(op: Op, view_of_operand: ViewLookup) -> View | None:
    """Dims of size 1 repeated, or a literal."""
    (x, *_), shape = op.operands, op.results[0].type.shape
    if isinstance(x, Literal):
        return filled(shape, x) if not x.type.shape else None
    if (known := view_of_operand(x)) and known.base is None and known.filler is not None:
        return filled(shape, known.filler)
    if op.params["broadcast_dimensions"] != tuple(range(len(shape))):
        return None
    view = view_of_operand(x)
    for d, (n, m) in enumerate(zip(x.type.shape, shape, strict=True)):
        if n != m and view is not None:
            view = view.mapped(d, lambda sources, m=m: np.repeat(sources, m))  # type: ignore[misc]
    return view


def _reshape(op: Op, view_of_operand: ViewLookup) -> View | None:
    """A view that is all filler, in a new shape."""
    view = view_of_operand(op.operands[0])
    if view is None or view.base is not None or view.filler is None:
        return None
    return filled(op.results[0].type.shape, view.filler)


def _sum(op: Op, view_of_operand: ViewLookup) -> View | None:
    """A sum of zeros, or of no elements."""
    view, kind = view_of_operand(op.operands[0]), op.results[0].type
    if view is None or view.base is not None or not zeros_only(view):
        return None
    return filled(kind.shape, view.filler or zero(kind))


def repeat_as_broadcast(op: Op, makers: Mapping[Value, Op]) -> Op | None:
    """Returns a dim of size 1 repeated by a broadcast and a reshape (`jnp.repeat`) as one
    broadcast.
    """
    first = op.operands[0] if role_of(op) is Role.RESHAPE else None
    made = makers.get(first) if isinstance(first, Value) else None
    if (
        made is None
        or role_of(made) is not Role.BROADCAST
        or not isinstance(made.operands[0], Value)
    ):
        return None
    x, wide, shape = made.operands[0], made.results[0].type.shape, op.results[0].type.shape
    if len(x.type.shape) != len(shape) or 0 in wide:
        return None
    longer = [d for d, (n, m) in enumerate(zip(x.type.shape, shape, strict=True)) if n != m]
    dims = made.params["broadcast_dimensions"]
    new = [d for d, n in enumerate(wide) if n != 1 and (d not in dims)]
    params = {**made.params, "shape": shape, "broadcast_dimensions": tuple(range(len(shape)))}
    once = dataclasses.replace(made, results=op.results, params=params, key=None)
    if not longer and not new:
        return once
    if len(longer) != 1 or len(new) != 1 or x.type.shape[longer[0]] != 1:
        return None
    if sum(n != 1 for n in wide[: new[0]]) != sum(n != 1 for n in shape[: longer[0]]):
        return None
    return once


def _add(op: Op, view_of_operand: ViewLookup) -> View | None:
    """The sum of two views of one base whose elements do not overlap, or of a view and zeros."""
    if not expands_nothing(op, scalars=False):
        return None
    one, two = (view_of_operand(x) for x in op.operands)
    for view, other in ((one, two), (two, one)):
        if view is not None and view.base is None and zero_filled(view):
            return other
    return None if one is None or two is None else without_overlap(one, two)


def expands_nothing(op: Op, *, scalars: bool = True) -> bool:
    """True if each operand has the shape of the op's one result; elementwise ops of jax expand
    dims of size 1.

    Args:
      scalars: let operands be scalars too.
    """
    allowed = {op.results[0].type.shape, *([()] if scalars else [])}
    return all(x.type.shape in allowed for x in op.operands)


def without_overlap(one: View, two: View) -> View | None:
    """Returns the sum of two zero-filled views of one base, or None if their elements overlap."""
    if one.base is None or one.base is not two.base:
        return None
    dims = [d for d in range(len(one.maps)) if not _same_map(one, two, d)]
    if len(dims) != 1 or not (zero_filled(one) and zero_filled(two)):
        return None
    (dim,) = dims
    a, b = one.sources(dim), two.sources(dim)
    if len(a) != len(b) or ((a != FILLER) & (b != FILLER)).any():
        return None
    return one.mapped(dim, lambda _: np.maximum(a, b))


def _same_map(one: View, two: View, dim: int) -> bool:
    return one.maps[dim] is two.maps[dim] or _equal(one.maps[dim], two.maps[dim])


def zero_filled(view: View) -> bool:
    """True if a view has a filler, equal to zero."""
    return view.filler is not None and view.filler.is_zero()


def zeros_only(view: View) -> bool:
    """True if a view has no filler but zero."""
    return view.filler is None or view.filler.is_zero()


_VIEW_RULES: Mapping[Role | None, Callable[[Op, Any], View | None]] = {
    Role.SLICE: _slice,
    Role.PADDING: _pad,
    Role.CONCATENATION: _concatenate,
    Role.REVERSAL: _rev,
    Role.BROADCAST: _broadcast,
    Role.RESHAPE: _reshape,
    Role.SUM: _sum,
    Role.ADDITION: _add,
}
VIEW_ROLES = frozenset(_VIEW_RULES)
