"""Numbers that are known before the program runs: places of updates and slices, fillers of pads."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from partir_search.ir.core import Literal, Op, Operand, Region, Value

MOST = 64  # numbers of an array that is followed


class Constants:
    """Values whose numbers are known before the program runs."""

    def __init__(self, arrays: Mapping[Value, Any]) -> None:
        self._known: dict[Value, Any] = {}
        for value, array in arrays.items():
            if _small(value):
                self._known[value] = np.asarray(array)

    def of(self, x: Operand) -> Any | None:
        """The numbers of an operand, or None."""
        if isinstance(x, Value):
            return self._known.get(x)
        return np.asarray(x.value) if np.ndim(x.value) == 0 else None

    def literal(self, x: Operand) -> Operand:
        """A scalar as a literal, if its number is known."""
        if isinstance(x, Value) and not x.type.shape and x in self._known:
            return Literal(self._known[x][()], x.type)
        return x

    def enter(self, op: Op) -> None:
        """Takes what is known into the op's regions, where it is the same whenever they run."""
        for region, first, operands in entering(op):
            for arg, x in zip(region.args[first:], operands, strict=False):
                known = self.of(x)
                if known is not None and _small(arg) and known.shape == arg.type.shape:
                    self._known[arg] = known

    def follow(self, op: Op) -> None:
        """Works out what the op makes, if that is known."""
        find = FOLDED.get(op.prim)
        small = len(op.results) == 1 and _small(op.results[0])
        if find is None or not small:
            return
        ins = [self.of(x) for x in op.operands]
        if all(x is not None for x in ins) and any(
            isinstance(x, Literal) or x in self._known for x in op.operands
        ):
            (result,) = op.results
            made = np.asarray(find(op.params, *ins), result.type.dtype)
            if made.shape == result.type.shape:
                self._known[result] = made


def entering(op: Op) -> Iterator[tuple[Region, int, Sequence[Operand]]]:
    """Regions, and which of their arguments stand for which operands."""
    p, regions = op.params, op.regions
    if op.prim == "scan":
        yield regions[0], 0, op.operands[: p["num_consts"]]
    elif op.prim == "while":
        first, second = p["cond_nconsts"], p["body_nconsts"]
        yield regions[0], 0, op.operands[:first]
        yield regions[1], 0, op.operands[first : first + second]
    elif op.prim == "cond":
        for region in regions:
            yield region, 0, op.operands[1:]
    elif op.prim in ("remat2", "checkpoint"):
        yield regions[0], 0, op.operands


def _small(value: Value) -> bool:
    shape, dtype = value.type.shape, value.type.dtype
    if len(shape) > 2 or math.prod(shape) > MOST:
        return False
    return bool(dtype == np.bool_ or jnp.issubdtype(dtype, np.number))


def _broadcast(params: Mapping[str, Any], x: Any, *_: Any) -> Any:
    shape, dims = params["shape"], params["broadcast_dimensions"]
    ones = [1] * len(shape)
    for d, n in zip(dims, np.shape(x), strict=True):
        ones[d] = n
    return np.broadcast_to(np.reshape(x, ones), shape)


def sliced(params: Mapping[str, Any], x: Any) -> Any:
    """The slice of an array that a primitive's params say."""
    strides = params["strides"] or (1,) * x.ndim
    ends = zip(params["start_indices"], params["limit_indices"], strides, strict=True)
    return x[tuple(slice(*e) for e in ends)]


FOLDED: dict[str, Callable[..., Any]] = {
    "broadcast_in_dim": _broadcast,
    "concatenate": lambda p, *xs: np.concatenate(xs, int(p["dimension"])),
    "convert_element_type": lambda p, x: x,
    "copy": lambda p, x: x,
    "neg": lambda p, x: -x,
    "reshape": lambda p, x, *_: np.reshape(x, p["new_sizes"]),
    "squeeze": lambda p, x: np.squeeze(x, tuple(p["dimensions"])),
    "slice": sliced,
    "add": lambda p, x, y: x + y,
    "sub": lambda p, x, y: x - y,
    "mul": lambda p, x, y: x * y,
    "lt": lambda p, x, y: x < y,
    "select_n": lambda p, w, *xs: np.where(w, xs[-1], xs[0]) if len(xs) == 2 else None,
    "clamp": lambda p, low, x, high: np.clip(x, low, high),
    "max": lambda p, x, y: np.maximum(x, y),
    "min": lambda p, x, y: np.minimum(x, y),
}
