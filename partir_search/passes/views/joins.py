"""Concatenations of one long operand with short ones: boundary rows beside an interior.

The long operand is padded and the short ones are selected into the margins: up to a few elements,
tiles of the result are tiles of the long operand.
"""

from __future__ import annotations

import numpy as np

from partir_search.ir.core import Op, Value
from partir_search.ir.role import Role
from partir_search.passes.views.maps import ANY, Shift
from partir_search.passes.views.view import View, ViewLookup, identity_view
from partir_search.passes.views.write import Writer
from partir_search.rules.registry import role_of
from partir_search.rules.shifts import LITTLE

MAX_OPERANDS = 5


def write_concatenation(writer: Writer, op: Op, view_of_operand: ViewLookup) -> bool:
    """Writes a concatenation as selects; False if it has no long operand or too many operands."""
    if role_of(op) is not Role.CONCATENATION or not 2 <= len(op.operands) <= MAX_OPERANDS:
        return False
    if not all(isinstance(x, Value) for x in op.operands):
        return False
    dim, (result,) = int(op.params["dimension"]), op.results
    sizes = [x.type.shape[dim] for x in op.operands]
    size = sum(sizes)
    if max(sizes) < (1 - LITTLE) * size:
        return False
    ends = np.cumsum(sizes).tolist()
    pieces = []
    for x, n, end in zip(op.operands, sizes, ends, strict=True):
        assert isinstance(x, Value)
        piece = _placed(x, view_of_operand(x), dim, end - n, size)
        if piece is None:
            return False
        pieces.append(piece)
    made = None
    for i, (piece, end) in enumerate(zip(pieces, ends, strict=True)):
        if piece.base is None:
            assert piece.filler is not None
            value = writer.full(op, piece.filler, result.type.shape)
        else:
            value = writer.view(op, piece)
        if made is None:
            made = value
            continue
        before = writer.within(op, result.type.shape, dim, 0, end - sizes[i])
        last = i == len(pieces) - 1
        made = writer.select(op, before, made, value, result if last else None)
    return True


def _placed(x: Value, view: View | None, dim: int, start: int, size: int) -> View | None:
    """Returns an operand as a view of the joined size, with `ANY` outside of its own elements."""
    for v in (view, identity_view(x)):
        if v is None:
            continue
        if v.base is None:
            return v
        n = len(v.sources(dim))
        ends = (start, size - start - n)
        placed = v.mapped(dim, lambda s: np.pad(s, ends, constant_values=ANY))  # noqa: B023
        shifts = placed.shifts()
        if shifts is not None and all(_suits(f, own=d == dim) for d, f in shifts.items()):
            return placed
    return None


def _suits(shift: Shift, own: bool) -> bool:
    """True if a map is local, or pads an operand of few elements along the joined dim (`own`)."""
    if shift.kept is not None or (shift.has_boundary and "" in (shift.below, shift.above)):
        return False
    kept_elements = min(shift.size, shift.size - shift.low, shift.extent) - max(shift.first, 0)
    return shift.is_local or (
        own and not shift.has_boundary and kept_elements <= LITTLE * shift.size
    )
