"""Writer of a rewritten region's ops: shifts, pads, selects."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from partir_search.ir.core import Literal, Op, Operand, Shape, Value
from partir_search.passes.fresh_names import FreshNames
from partir_search.passes.views.maps import Shift
from partir_search.passes.views.view import View
from partir_search.rules.boundaries import SHIFT
from partir_search.rules.construct import (
    NewOp,
    at_least,
    both,
    broadcast,
    equal,
    index_grid,
    less,
    own,
    padded,
    remainder,
    renamed,
    selected,
    sliced,
    zero,
)


class Writer:
    """Ops of one region in program order; shifts and flags written before are reused."""

    def __init__(self, names: FreshNames) -> None:
        self.names = names
        self.ops: list[Op] = []
        self._known: dict[tuple[Any, ...], Value] = {}  # values written before, by op and arguments

    def mark(self) -> tuple[int, dict[tuple[Any, ...], Value]]:
        """Returns a state for `rollback`."""
        return len(self.ops), dict(self._known)

    def rollback(self, mark: tuple[int, dict[tuple[Any, ...], Value]]) -> None:
        """Drops all ops written since `mark`."""
        at, self._known = mark
        del self.ops[at:]

    def put(self, old: Op, new: NewOp, into: Value | None = None) -> Value:
        """Writes an op with the source line and scope of `old`, and returns its result.

        Args:
          into: result; a fresh value if None.
        """
        result = into
        if result is None:
            result = Value(-1, new.type, self.names(f"{old.results[0].name}_part"))
        self.ops.append(new.at(old, result))
        return result

    def renamed(self, old: Op, x: Value, into: Value) -> Value:
        """Writes `x` as the value `into`."""
        if self.ops and self.ops[-1].results == (x,) and x not in self._known.values():
            self.ops[-1] = dataclasses.replace(self.ops[-1], results=(into,), key=None)
            return into
        return self.put(old, renamed(x), into)

    def view(self, old: Op, view: View, into: Value | None = None) -> Value:
        """Writes a view: boundaries first, then a pad or slice, then fillers."""
        shifts = view.shifts()
        assert shifts is not None
        assert view.base is not None
        filler = view.filler or zero(view.base.type)
        last = self._steps(shifts)
        x = view.base
        for at, (kind, dim) in enumerate(last):
            end = into if at == len(last) - 1 else None
            if kind == "boundary":
                x = self.shift(old, x, dim, shifts[dim], end)
            elif kind == "ends":
                plain = {d: f for d, f in shifts.items() if not f.has_boundary}
                x = self.pad(old, x, plain, filler, end)
            else:
                shift, size = shifts[dim], x.type.shape
                start, stop = shift.kept or (max(shift.low, 0), shift.size - max(shift.high, 0))
                fill = self.full(old, filler, size)
                x = self.select(old, self.within(old, size, dim, start, stop), x, fill, end)
        return x

    @staticmethod
    def _steps(shifts: Mapping[int, Shift]) -> list[tuple[str, int]]:
        steps = [("boundary", d) for d, f in shifts.items() if f.has_boundary]
        if any(not f.has_boundary and (f.first or f.size != f.extent) for f in shifts.values()):
            steps.append(("ends", -1))
        return steps + [("fill", d) for d, f in shifts.items() if f.kept]

    def shift(self, old: Op, x: Value, dim: int, shift: Shift, into: Value | None) -> Value:
        """Writes a dim read from `shift.first` on, with the elements beyond its ends."""
        key = (SHIFT, x, dim, shift)
        if key in self._known and into is None:
            return self._known[key]
        shape = (*x.type.shape[:dim], shift.size, *x.type.shape[dim + 1 :])
        new = own(
            SHIFT,
            (x,),
            shape,
            dimension=dim,
            first=shift.first,
            below=shift.below,
            above=shift.above,
            extent=shift.extent,
        )
        made = self.put(old, new, into)
        return self._known.setdefault(key, made)

    def pad(
        self, old: Op, x: Value, shifts: Mapping[int, Shift], filler: Literal, into: Value | None
    ) -> Value:
        """Writes a pad (low and high may be negative), or a slice if no element is added."""
        shape = x.type.shape
        if all(f.low <= 0 and f.high <= 0 for f in shifts.values()):
            starts = [shifts[d].first if d in shifts else 0 for d in range(len(shape))]
            sizes = (shifts[d].size if d in shifts else n for d, n in enumerate(shape))
            ends = [s + n for s, n in zip(starts, sizes, strict=True)]
            return self.put(old, sliced(x, starts, ends), into)
        ends_of = {d: (f.low, f.high) for d, f in shifts.items()}
        config = [(*ends_of.get(d, (0, 0)), 0) for d in range(len(shape))]
        return self.put(old, padded(x, filler, config), into)

    def full(self, old: Op, filler: Literal, shape: Shape) -> Value:
        """Writes an array filled with a literal."""
        return self.put(old, broadcast(filler, shape, ()))

    def within(self, old: Op, shape: Shape, dim: int, start: int, stop: int) -> Value:
        """Writes flags: True for positions in [start, stop) of a dim."""
        key = ("within", shape, dim, start, stop)
        if key not in self._known:
            place = self.put(old, index_grid(shape, dim))
            ends = []
            if start > 0:
                ends.append(self.put(old, at_least(place, start)))
            if stop < shape[dim] or start <= 0:
                ends.append(self.put(old, less(place, stop)))
            self._known[key] = self.all_of(old, ends)
        return self._known[key]

    def every(self, old: Op, shape: Shape, dim: int, first: int, step: int) -> Value:
        """Writes flags: True for each `step`-th position of a dim, from `first` on."""
        key = ("every", shape, dim, first, step)
        if key not in self._known:
            place = self.put(old, index_grid(shape, dim))
            left = self.put(old, remainder(place, step))
            self._known[key] = self.put(old, equal(left, first))
        return self._known[key]

    def select(
        self, old: Op, where: Value, yes: Operand, no: Operand, into: Value | None = None
    ) -> Value:
        """Writes `yes` where `where` is True and `no` elsewhere."""
        return self.put(old, selected(where, yes, no), into)

    def all_of(self, old: Op, flags: Sequence[Value]) -> Value:
        """Writes the conjunction of flags."""
        return functools.reduce(lambda x, y: self.put(old, both(x, y)), flags)
