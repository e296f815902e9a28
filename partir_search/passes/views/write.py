"""Writes the ops of rewritten regions: shifts, pads, selects."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jax import lax

from partir_search.ir.core import Literal, Op, Operand, Shape, TensorType, Value
from partir_search.passes.views.maps import Form
from partir_search.passes.views.view import View, zero
from partir_search.rules.boundaries import SHIFT

_INT32 = np.dtype(np.int32)
_INDEX = TensorType((), _INT32, 4)
_FLAG = TensorType((), np.dtype(np.bool_), 1)


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

    def add(
        self,
        near: Op,
        handle: Any,
        operands: Sequence[Operand],
        shape: Shape,
        params: Mapping[str, Any],
        *,
        like: TensorType | None = None,
        into: Value | None = None,
    ) -> Value:
        """Writes an op where `near` stands.

        Args:
          handle: the primitive, or the name of one of ours.
          like: has the result's element type; None: that of what `near` makes.
          into: the value to make.
        """
        result = into
        if result is None:
            kind = dataclasses.replace(like or near.results[0].type, shape=shape)
            result = Value(-1, kind, self.names(f"{near.results[0].name}_part"))
        prim = handle if isinstance(handle, str) else handle.name
        self.ops.append(
            Op(
                id=-1,
                prim=prim,
                operands=tuple(operands),
                results=(result,),
                params=params,
                origin=near.origin,
                scope=near.scope,
                backward=near.backward,
                handle=None if isinstance(handle, str) else handle,
            )
        )
        return result

    def renamed(self, near: Op, x: Value, into: Value) -> Value:
        """`x` under another name."""
        if self.ops and self.ops[-1].results == (x,) and x not in self._known.values():
            self.ops[-1] = dataclasses.replace(self.ops[-1], results=(into,), key=None)
            return into
        shape = x.type.shape
        dims = tuple(range(len(shape)))
        params = {"shape": shape, "broadcast_dimensions": dims, "sharding": None}
        return self.add(near, lax.broadcast_in_dim_p, (x,), shape, params, like=x.type, into=into)

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
            if kind == "shift":
                x = self.shift(near, x, dim, forms[dim], end)
            elif kind == "pad":
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
        steps = [("shift", d) for d, f in forms.items() if f.turns]
        if any(not f.turns and (f.first or f.size != f.extent) for f in forms.values()):
            steps.append(("pad", -1))
        return steps + [("fill", d) for d, f in forms.items() if f.kept]

    def shift(self, near: Op, x: Value, dim: int, form: Form, into: Value | None) -> Value:
        """A dim read from `form.first` on, with what stands beyond its ends."""
        key = (SHIFT, x, dim, form)
        if key in self._known and into is None:
            return self._known[key]
        shape = (*x.type.shape[:dim], form.size, *x.type.shape[dim + 1 :])
        params = {
            "dimension": dim,
            "first": form.first,
            "below": form.below,
            "above": form.above,
            "extent": form.extent,
        }
        made = self.add(near, SHIFT, (x,), shape, params, like=x.type, into=into)
        return self._known.setdefault(key, made)

    def pad(
        self, near: Op, x: Value, forms: Mapping[int, Form], filler: Literal, into: Value | None
    ) -> Value:
        """A slice where nothing is added, else a pad, which may cut too."""
        shape = tuple(forms[d].size if d in forms else n for d, n in enumerate(x.type.shape))
        if all(f.low <= 0 and f.high <= 0 for f in forms.values()):
            starts = tuple(forms[d].first if d in forms else 0 for d in range(len(shape)))
            params: dict[str, Any] = {
                "start_indices": starts,
                "limit_indices": tuple(s + n for s, n in zip(starts, shape, strict=True)),
                "strides": None,
            }
            return self.add(near, lax.slice_p, (x,), shape, params, like=x.type, into=into)
        ends = [(forms[d].low, forms[d].high) if d in forms else (0, 0) for d in range(len(shape))]
        params = {"padding_config": tuple((low, high, 0) for low, high in ends)}
        return self.add(near, lax.pad_p, (x, filler), shape, params, like=x.type, into=into)

    def full(self, near: Op, filler: Literal, shape: Shape) -> Value:
        """A literal in every place."""
        params = {"shape": shape, "broadcast_dimensions": (), "sharding": None}
        return self.add(near, lax.broadcast_in_dim_p, (filler,), shape, params, like=filler.type)

    def within(self, near: Op, shape: Shape, dim: int, start: int, stop: int) -> Value:
        """Tells whether a place is in [start, stop) of a dim."""
        key = ("within", shape, dim, start, stop)
        if key not in self._known:
            params = {"dtype": _INT32, "shape": shape, "dimension": dim, "sharding": None}
            place = self.add(near, lax.iota_p, (), shape, params, like=_INDEX)
            ends = [
                self.add(near, how, (place, _int32(n)), shape, {}, like=_FLAG)
                for how, n, needed in (
                    (lax.ge_p, start, start > 0),
                    (lax.lt_p, stop, stop < shape[dim] or start <= 0),
                )
                if needed
            ]
            if len(ends) == 2:
                ends = [self.add(near, lax.and_p, ends, shape, {}, like=_FLAG)]
            self._known[key] = ends[0]
        return self._known[key]

    def every(self, near: Op, shape: Shape, dim: int, first: int, step: int) -> Value:
        """Tells whether a place of a dim is one of every `step` from `first` on."""
        key = ("every", shape, dim, first, step)
        if key not in self._known:
            params = {"dtype": _INT32, "shape": shape, "dimension": dim, "sharding": None}
            place = self.add(near, lax.iota_p, (), shape, params, like=_INDEX)
            left = self.add(near, lax.rem_p, (place, _int32(step)), shape, {}, like=_INDEX)
            made = self.add(near, lax.eq_p, (left, _int32(first)), shape, {}, like=_FLAG)
            self._known[key] = made
        return self._known[key]

    def select(
        self, near: Op, where: Value, yes: Operand, no: Operand, into: Value | None = None
    ) -> Value:
        """`yes` where `where` holds, else `no`."""
        shape, ins = where.type.shape, (where, no, yes)
        return self.add(near, lax.select_n_p, ins, shape, {}, like=yes.type, into=into)


def _int32(n: int) -> Literal:
    return Literal(np.int32(n), _INDEX)
