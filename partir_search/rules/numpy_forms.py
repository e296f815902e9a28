"""Primitives evaluated by numpy, for constants known before a program runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from partir_search.ir.core import Op


@dataclasses.dataclass(frozen=True, slots=True)
class NumpyForm:
    """Evaluation of a primitive by numpy.

    Attributes:
      run: (parameters, *operands) to the result, before conversion to its dtype.
      exact: equal to a device's result to the last bit.
    """

    run: Callable[..., Any]
    exact: bool = True


def numpy_form(op: Op) -> NumpyForm | None:
    """Numpy form of the primitive of `op`, if any."""
    return _FORMS.get(op.prim)


def _broadcast(params: Mapping[str, Any], x: Any, *_: Any) -> Any:
    shape, ones = params["shape"], [1] * len(params["shape"])
    for d, n in zip(params["broadcast_dimensions"], np.shape(x), strict=True):
        ones[d] = n
    return np.broadcast_to(np.reshape(x, ones), shape)


def _iota(params: Mapping[str, Any]) -> Any:
    shape, dim = params["shape"], params["dimension"]
    ones = [n if d == dim else 1 for d, n in enumerate(shape)]
    return np.broadcast_to(np.arange(shape[dim]).reshape(ones), shape)


def _select(params: Mapping[str, Any], which: Any, *cases: Any) -> Any:
    found = cases[0]
    for k, case in enumerate(cases[1:], 1):
        found = np.where(which == k, case, found)
    return found


def _slice(params: Mapping[str, Any], x: Any) -> Any:
    strides = params["strides"] or (1,) * x.ndim
    ends = zip(params["start_indices"], params["limit_indices"], strides, strict=True)
    return x[tuple(slice(*e) for e in ends)]


def _divided(x: Any, y: Any) -> Any:
    if np.issubdtype(x.dtype, np.integer):
        return np.trunc(np.true_divide(x, y)).astype(x.dtype)
    return x / y


def _plain(fn: Callable[..., Any], exact: bool = True) -> NumpyForm:
    return NumpyForm(lambda params, *xs: fn(*xs), exact)


_FORMS: Mapping[str, NumpyForm] = {
    "iota": NumpyForm(_iota),
    "broadcast_in_dim": NumpyForm(_broadcast),
    "concatenate": NumpyForm(lambda p, *xs: np.concatenate(xs, int(p["dimension"]))),
    "convert_element_type": NumpyForm(lambda p, x: x.astype(p["new_dtype"])),
    "copy": NumpyForm(lambda p, x: x),
    "reduce_sum": NumpyForm(lambda p, x: x.sum(tuple(p["axes"]), dtype=x.dtype), exact=False),
    "reshape": NumpyForm(lambda p, x, *_: np.reshape(x, p["new_sizes"])),
    "rev": NumpyForm(lambda p, x: np.flip(x, tuple(p["dimensions"]))),
    "slice": NumpyForm(_slice),
    "squeeze": NumpyForm(lambda p, x: np.squeeze(x, tuple(p["dimensions"]))),
    "transpose": NumpyForm(lambda p, x: np.transpose(x, tuple(p["permutation"]))),
    "select_n": NumpyForm(_select),
    "integer_pow": NumpyForm(lambda p, x: x ** p["y"], exact=False),
    "clamp": _plain(lambda low, x, high: np.clip(x, low, high)),
    "div": _plain(_divided, exact=False),
    "add": _plain(np.add),
    "sub": _plain(np.subtract),
    "mul": _plain(np.multiply),
    "neg": _plain(np.negative),
    "abs": _plain(np.abs),
    "floor": _plain(np.floor),
    "max": _plain(np.maximum),
    "min": _plain(np.minimum),
    "gt": _plain(np.greater),
    "ge": _plain(np.greater_equal),
    "lt": _plain(np.less),
    "le": _plain(np.less_equal),
    "eq": _plain(np.equal),
    "ne": _plain(np.not_equal),
    "and": _plain(np.bitwise_and),
    "or": _plain(np.bitwise_or),
    "rem": _plain(np.fmod, exact=False),
    "sin": _plain(np.sin, exact=False),
    "sign": _plain(np.sign),
    "exp": _plain(np.exp, exact=False),
}
