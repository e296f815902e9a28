"""Writes the ops of rewritten regions: shifts, pads, selects."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from partir_search.ir.core import Literal, Op, Operand, Shape, Value
from partir_search.passes.views.maps import Form
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


class Names:
    """Names of a module's values; fresh ones for new values."""

    def __init__(self, taken: set[str]) -> None:
        self._taken = taken

    def __call__(self, stem: str) -> str:
        name, n = stem, 1
        while name in self._taken:
            name, n = f"{stem}_{n}", n + 1
        self._taken.add(name)
        return name


class Writer:
    """Ops of one region, in the order in which they are written."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self.ops: list[Op] = []
        self._known: dict[tuple[Any, ...], Value] = {}  # what was written before

    def mark(self) -> tuple[int, dict[tuple[Any, ...], Value]]:
        """A place to go back to."""
        return len(self.ops), dict(self._known)

    def back(self, mark: tuple[int, dict[tuple[Any, ...], Value]]) -> None:
        """Takes back what was written since."""
        at, self._known = mark
        del self.ops[at:]

    def put(self, near: Op, new: NewOp, into: Value | None = None) -> Value:
        """Writes an op where `near` stands.

        Args:
          into: the value to make.
        """
        result = into
        if result is None:
            result = Value(-1, new.type, self.names(f"{near.results[0].name}_part"))
        self.ops.append(new.at(near, result))
        return result

    def renamed(self, near: Op, x: Value, into: Value) -> Value:
        """`x` under another name."""
        if self.ops and self.ops[-1].results == (x,) and x not in self._known.values():
            self.ops[-1] = dataclasses.replace(self.ops[-1], results=(into,), key=None)
            return into
        return self.put(near, renamed(x), into)

    def view(self, near: Op, view: View, into: Value | None = None) -> Value:
        """Writes a view: first what comes from beyond ends, then pads or slices, then fillers."""
        forms = view.forms()
        assert forms is not None
        assert view.base is not None
        filler = view.filler or zero(view.base.type)
        last = self._steps(forms)
        x = view.base
        for at, (kind, dim) in enumerate(last):
            end = into if at == len(last) - 1 else None
            if kind == "boundary":
                x = self.shift(near, x, dim, forms[dim], end)
            elif kind == "ends":
                plain = {d: f for d, f in forms.items() if not f.turns}
                x = self.pad(near, x, plain, filler, end)
            else:
                form, size = forms[dim], x.type.shape
                start, stop = form.kept or (max(form.low, 0), form.size - max(form.high, 0))
                fill = self.full(near, filler, size)
                x = self.select(near, self.within(near, size, dim, start, stop), x, fill, end)
        return x

    @staticmethod
    def _steps(forms: Mapping[int, Form]) -> list[tuple[str, int]]:
        steps = [("boundary", d) for d, f in forms.items() if f.turns]
        if any(not f.turns and (f.first or f.size != f.extent) for f in forms.values()):
            steps.append(("ends", -1))
        return steps + [("fill", d) for d, f in forms.items() if f.kept]

    def shift(self, near: Op, x: Value, dim: int, form: Form, into: Value | None) -> Value:
        """A dim read from `form.first` on, with what stands beyond its ends."""
        key = (SHIFT, x, dim, form)
        if key in self._known and into is None:
            return self._known[key]
        shape = (*x.type.shape[:dim], form.size, *x.type.shape[dim + 1 :])
        new = own(
            SHIFT,
            (x,),
            shape,
            dimension=dim,
            first=form.first,
            below=form.below,
            above=form.above,
            extent=form.extent,
        )
        made = self.put(near, new, into)
        return self._known.setdefault(key, made)

    def pad(
        self, near: Op, x: Value, forms: Mapping[int, Form], filler: Literal, into: Value | None
    ) -> Value:
        """A slice where nothing is added, else a pad, which may cut too."""
        shape = x.type.shape
        if all(f.low <= 0 and f.high <= 0 for f in forms.values()):
            starts = [forms[d].first if d in forms else 0 for d in range(len(shape))]
            sizes = (forms[d].size if d in forms else n for d, n in enumerate(shape))
            ends = [s + n for s, n in zip(starts, sizes, strict=True)]
            return self.put(near, sliced(x, starts, ends), into)
        ends_of = {d: (f.low, f.high) for d, f in forms.items()}
        config = [(*ends_of.get(d, (0, 0)), 0) for d in range(len(shape))]
        return self.put(near, padded(x, filler, config), into)

    def full(self, near: Op, filler: Literal, shape: Shape) -> Value:
        """A literal in every place."""
        return self.put(near, broadcast(filler, shape, ()))

    def within(self, near: Op, shape: Shape, dim: int, start: int, stop: int) -> Value:
        """Tells whether a place is in [start, stop) of a dim."""
        key = ("within", shape, dim, start, stop)
        if key not in self._known:
            place = self.put(near, index_grid(shape, dim))
            ends = []
            if start > 0:
                ends.append(self.put(near, at_least(place, start)))
            if stop < shape[dim] or start <= 0:
                ends.append(self.put(near, less(place, stop)))
            self._known[key] = self.all_of(near, ends)
        return self._known[key]

    def every(self, near: Op, shape: Shape, dim: int, first: int, step: int) -> Value:
        """Tells whether a place of a dim is one of every `step` from `first` on."""
        key = ("every", shape, dim, first, step)
        if key not in self._known:
            place = self.put(near, index_grid(shape, dim))
            left = self.put(near, remainder(place, step))
            self._known[key] = self.put(near, equal(left, first))
        return self._known[key]

    def select(
        self, near: Op, where: Value, yes: Operand, no: Operand, into: Value | None = None
    ) -> Value:
        """`yes` where `where` holds, else `no`."""
        return self.put(near, selected(where, yes, no), into)

    def all_of(self, near: Op, flags: Sequence[Value]) -> Value:
        """The conjunction of some flags."""
        return functools.reduce(lambda x, y: self.put(near, both(x, y)), flags)
