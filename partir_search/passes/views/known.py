"""Arrays that a program makes of nothing but its own numbers: weights and places of a resize."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from partir_search.ir.core import Literal, Op, Operand, Region, Value
from partir_search.passes.views.constants import entering, sliced

MOST = 1 << 25  # elements of an array that is worked out


class Known:
    """Values of one region that depend on no argument."""

    def __init__(self, region: Region, arrays: Mapping[Value, Callable[[], Any]]) -> None:
        """Known values of a region; `arrays` gives those that enter it."""
        self._region, self._arrays = region, arrays
        self._found: dict[Value, Any] = {}
        self._constant: dict[Value, bool] = {}

    @functools.cached_property
    def _makers(self) -> dict[Value, Op]:
        return {r: op for op in self._region.ops for r in op.results}

    def array(self, x: Operand) -> Any | None:
        """The numbers of a value; None if they are not known, or too many."""
        return self._evaluate(x) if self._is_known(x) else None

    def entering(self, op: Op) -> Iterator[tuple[Value, Callable[[], Any]]]:
        """Arguments of an op's regions that are the same whenever they run, if they are known."""
        for region, first, operands in entering(op):
            for arg, x in zip(region.args[first:], operands, strict=False):
                if self._is_known(x):
                    yield arg, functools.partial(self._evaluate, x)

    def _is_known(self, x: Operand) -> bool:
        if isinstance(x, Literal):
            return True
        if x in self._arrays:
            return math.prod(x.type.shape) <= MOST
        known = self._constant.get(x)
        if known is None:
            op = self._makers.get(x)
            fits = op is not None and op.prim in _EVALUATED and math.prod(x.type.shape) <= MOST
            known = fits and op is not None and all(map(self._is_known, op.operands))
            self._constant[x] = known
        return known

    def _evaluate(self, x: Operand) -> Any:
        if isinstance(x, Literal):
            return np.asarray(x.value)
        if x in self._arrays and x not in self._found:
            self._found[x] = np.asarray(self._arrays[x]())
        if x not in self._found:
            op = self._makers[x]
            with np.errstate(all="ignore"):
                made = _EVALUATED[op.prim](op.params, *map(self._evaluate, op.operands))
            self._found[x] = np.asarray(made, np.dtype(x.type.dtype)).reshape(x.type.shape)
        return self._found[x]


def _broadcast(params: Mapping[str, Any], x: Any, *_: Any) -> Any:
    shape, ones = params["shape"], [1] * len(params["shape"])
    for d, n in zip(params["broadcast_dimensions"], x.shape, strict=True):
        ones[d] = n
    return np.broadcast_to(x.reshape(ones), shape)


def _iota(params: Mapping[str, Any]) -> Any:
    shape, dim = params["shape"], params["dimension"]
    ones = [n if d == dim else 1 for d, n in enumerate(shape)]
    return np.broadcast_to(np.arange(shape[dim]).reshape(ones), shape)


def _select(params: Mapping[str, Any], which: Any, *cases: Any) -> Any:
    return np.where(which, cases[-1], cases[0])


def _plain(fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda params, *xs: fn(*xs)


def _divided(x: Any, y: Any) -> Any:
    if np.issubdtype(x.dtype, np.integer):
        return np.trunc(np.true_divide(x, y)).astype(x.dtype)
    return x / y


_EVALUATED: dict[str, Callable[..., Any]] = {
    "iota": _iota,
    "broadcast_in_dim": _broadcast,
    "select_n": _select,
    "convert_element_type": lambda p, x: x.astype(p["new_dtype"]),
    "reduce_sum": lambda p, x: x.sum(tuple(p["axes"]), dtype=x.dtype),
    "reshape": lambda p, x, *_: x.reshape(p["new_sizes"]),
    "squeeze": lambda p, x: np.squeeze(x, tuple(p["dimensions"])),
    "integer_pow": lambda p, x: x ** p["y"],
    "clamp": _plain(lambda low, x, high: np.clip(x, low, high)),
    "div": _plain(_divided),
    "copy": _plain(lambda x: x),
    "concatenate": lambda p, *xs: np.concatenate(xs, int(p["dimension"])),
    "slice": sliced,
    "rev": lambda p, x: np.flip(x, tuple(p["dimensions"])),
    "transpose": lambda p, x: np.transpose(x, tuple(p["permutation"])),
    **{
        name: _plain(fn)
        for name, fn in {
            "add": np.add,
            "sub": np.subtract,
            "mul": np.multiply,
            "neg": np.negative,
            "abs": np.abs,
            "floor": np.floor,
            "max": np.maximum,
            "min": np.minimum,
            "gt": np.greater,
            "ge": np.greater_equal,
            "lt": np.less,
            "le": np.less_equal,
            "eq": np.equal,
            "ne": np.not_equal,
            "and": np.logical_and,
            "or": np.logical_or,
            "rem": np.fmod,
            "sin": np.sin,
            "sign": np.sign,
            "exp": np.exp,
        }.items()
    },
}
