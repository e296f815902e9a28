"""Elementwise ops on padded arrays, computed before the padding.

A flux of an array with ghost cells (``0.5 * jnp.pad(u, 1, mode="wrap") ** 2``) has copies of the
flux of `u` beyond its ends. Computed on `u`, no array of two more elements is tiled: slices of the
padded flux are shifts of the flux. In the gradient, cotangents of slices are placed in zeros and
multiplied: the product of a cotangent is computed before it is placed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from partir_search.ir.boundaries import Ints
from partir_search.ir.core import Op, Operand, Value
from partir_search.ir.kind import Kind
from partir_search.passes.views.maps import FILLER, identity
from partir_search.passes.views.sums import Sums
from partir_search.passes.views.view import View, equal_maps, expands_nothing, zero_filled
from partir_search.passes.views.write import Writer
from partir_search.rules.construct import like, zero
from partir_search.rules.registry import RuleTable

MAX_PLACED = 9  # cotangents multiplied one by one: of a stencil of nine points


def write_elementwise(writer: Writer, op: Op, views: Mapping[Value, View]) -> View | None:
    """Writes an elementwise op on equally padded arrays as the padding of the op's result.

    Args:
      views: view of each value known as one.

    Returns:
      View of the op's result; None, with no op written, unless all arrays are padded alike by
      copies of their elements.
    """
    found = [views[x] for x in op.operands if isinstance(x, Value) and x in views]
    first = next((v for v in found if _is_padded(v)), None)
    if first is None or first.base is None or len(op.results) != 1 or op.effect:
        return None
    operands = _before(op, views, first)
    if operands is None or RuleTable()(op).kind is not Kind.ELEMENTWISE:
        return None
    if not expands_nothing(op):
        return None
    made = writer.put(op, like(op, operands, first.base.type.shape))
    view = View(made, first.maps)
    writer.view(op, view, op.results[0])
    return view


def _before(op: Op, views: Mapping[Value, View], first: View) -> Sequence[Operand] | None:
    """Returns the operands before padding; None if some are padded unlike `first`."""
    found: list[Operand] = []
    for x in op.operands:
        if not x.type.shape:
            found.append(x)
            continue
        view = views.get(x) if isinstance(x, Value) else None
        if view is None or view.base is None or not equal_maps(view, first, but=-1):
            return None
        found.append(view.base)
    return found


def _is_padded(view: View) -> bool:
    """True for an array with further elements beyond its ends, all copies of elements."""
    if view.base is None or all(m is None for m in view.maps):
        return False
    shape = view.base.type.shape
    changed = [(m, n) for m, n in zip(view.maps, shape, strict=True) if m is not None]
    if any(len(m) <= n or (m == FILLER).any() for m, n in changed):
        return False
    shifts = view.shifts()
    return shifts is not None and all(f.is_local and f.kept is None for f in shifts.values())


def linear_terms(
    writer: Writer, op: Op, views: Mapping[Value, View], sums: Sums
) -> list[View] | None:
    """Writes an op, linear in a sum of placed arrays, on each of the arrays.

    Args:
      views: view of each value known as one.
      sums: values known as sums of views.

    Returns:
      Placed results whose sum is the op's result; None, with no op written, unless every other
      operand is a scalar or a padded array.
    """
    if len(op.results) != 1 or op.effect:
        return None
    for i, x in enumerate(op.operands):
        terms = [] if not isinstance(x, Value) or sums.is_read(x) else sums.of(x)
        if not terms and isinstance(x, Value) and x in views and views[x].base is not None:
            terms = [views[x]] if zero_filled(views[x]) else []
        if 0 < len(terms) <= MAX_PLACED and all(map(_may_place, terms)):
            rest = {k: y for k, y in enumerate(op.operands) if k != i}
            others = {k: views.get(y) if isinstance(y, Value) else None for k, y in rest.items()}
            if any(y.type.shape and not _copies(others[k]) for k, y in rest.items()):
                continue
            rule = RuleTable()(op)
            if rule.kind is Kind.ELEMENTWISE and (i,) in rule.linear and expands_nothing(op):
                return _on_each(writer, op, i, terms, others)
    return None


def _on_each(
    writer: Writer, op: Op, at: int, terms: Sequence[View], others: Mapping[int, View | None]
) -> list[View] | None:
    begin, found = writer.mark(), list[View]()
    for term in terms:
        assert term.base is not None
        operands = list(op.operands)
        operands[at] = term.base
        for k, other in others.items():
            if op.operands[k].type.shape:
                assert other is not None
                read = _read_at(other, term)
                if read is None:
                    writer.rollback(begin)
                    return None
                unchanged = all(m is None for m in read.maps)
                operands[k] = read.base if unchanged and read.base else writer.view(op, read)
        made = writer.put(op, like(op, operands, term.base.type.shape))
        found.append(View(made, term.maps, zero(made.type)))
    return found


def _may_place(term: View) -> bool:
    """True for an array placed in zeros, each element once and in order."""
    if term.base is None or all(m is None for m in term.maps):
        return False
    return all(_places(term, d) is not None for d in range(len(term.maps)))


def _places(term: View, dim: int) -> Ints | None:
    """Positions of the base's elements along a dim of a view; None if not each is read in order."""
    assert term.base is not None
    sources, n = term.sources(dim), term.base.type.shape[dim]
    found = (sources >= 0).nonzero()[0]
    return found if len(found) == n and (sources[found] == identity(n)).all() else None


def _copies(view: View | None) -> bool:
    """True for a view without fillers."""
    return (
        view is not None
        and view.base is not None
        and all(m is None or (m >= 0).all() for m in view.maps)
    )


def _read_at(view: View, term: View) -> View | None:
    """The elements of a view at the places of a term's base; None if they are no local shift."""
    for d in range(len(view.maps)):
        places = _places(term, d)
        assert places is not None
        view = view.mapped(d, lambda s, at=places: s[at])  # type: ignore[misc]
    shifts = view.shifts()
    local = shifts is not None and all(f.is_local and f.kept is None for f in shifts.values())
    return view if local else None
