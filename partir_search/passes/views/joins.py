"""Concatenations of a long operand with short ones: boundary rows beside an interior.

The long operand is padded, the short ones are put where it does not reach: tiles of the whole are
tiles of the long operand but for a few elements.
"""

from __future__ import annotations

import numpy as np

from partir_search.ir.core import Op, Value
from partir_search.ir.role import Role
from partir_search.passes.views.maps import ANY, Form
from partir_search.passes.views.view import Look, View, whole
from partir_search.passes.views.write import Writer
from partir_search.rules.registry import role_of
from partir_search.rules.shifts import LITTLE

MOST = 5  # operands


def join(writer: Writer, op: Op, look: Look) -> bool:
    """Writes a concatenation as selects, if it is one of this kind."""
    if role_of(op) is not Role.CONCATENATION or not 2 <= len(op.operands) <= MOST:
        return False
    if not all(isinstance(x, Value) for x in op.operands):
        return False
    dim, (result,) = int(op.params["dimension"]), op.results
    sizes = [x.type.shape[dim] for x in op.operands]
    size = sum(sizes)
    if max(sizes) < (1 - LITTLE) * size:
        return False
    ends = np.cumsum(sizes).tolist()
    parts = []
    for x, n, end in zip(op.operands, sizes, ends, strict=True):
        assert isinstance(x, Value)
        part = _placed(x, look(x), dim, end - n, size)
        if part is None:
            return False
        parts.append(part)
    made = None
    for i, (part, end) in enumerate(zip(parts, ends, strict=True)):
        if part.base is None:
            assert part.filler is not None
            value = writer.full(op, part.filler, result.type.shape)
        else:
            value = writer.view(op, part)
        if made is None:
            made = value
            continue
        before = writer.within(op, result.type.shape, dim, 0, end - sizes[i])
        last = i == len(parts) - 1
        made = writer.select(op, before, made, value, result if last else None)
    return True


def _placed(x: Value, view: View | None, dim: int, start: int, size: int) -> View | None:
    """An operand as a view of the joined size: anything may stand where the others do."""
    for v in (view, whole(x)):
        if v is None:
            continue
        if v.base is None:
            return v
        n = len(v.sources(dim))
        ends = (start, size - start - n)
        placed = v.mapped(dim, lambda s: np.pad(s, ends, constant_values=ANY))  # noqa: B023
        forms = placed.forms()
        if forms is not None and all(_suits(f, own=d == dim) for d, f in forms.items()):
            return placed
    return None


def _suits(form: Form, own: bool) -> bool:
    """Tells whether a map does for a part: elements stay near, or they are few."""
    if form.kept is not None or (form.turns and "" in (form.below, form.above)):
        return False
    held = min(form.size, form.size - form.low, form.extent) - max(form.first, 0)
    return form.near or (own and not form.turns and held <= LITTLE * form.size)
