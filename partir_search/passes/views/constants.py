"""Small arrays known at planning time: positions of updates and slices, fillers of pads."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from partir_search.ir.core import Literal, Op, Operand, Value
from partir_search.rules.numpy_forms import numpy_form
from partir_search.rules.registry import edges_of

MAX_ELEMENTS = 64  # elements of a value worth evaluating at every op


class SmallConstants:
    """Small values known at planning time, at every depth of a module."""

    def __init__(self, arrays: Mapping[Value, Any]) -> None:
        self._known: dict[Value, Any] = {}
        for value, array in arrays.items():
            if _small(value):
                self._known[value] = np.asarray(array)

    def of(self, x: Operand) -> Any | None:
        """Returns the array of an operand, or None if unknown."""
        if isinstance(x, Value):
            return self._known.get(x)
        return np.asarray(x.value) if np.ndim(x.value) == 0 else None

    def literal(self, x: Operand) -> Operand:
        """Returns a known scalar as a literal; any further operand unchanged."""
        if isinstance(x, Value) and not x.type.shape and x in self._known:
            return Literal(self._known[x][()], x.type)
        return x

    def enter(self, op: Op) -> None:
        """Records known arguments of an op's regions, if equal in each run of the region."""
        for arg, x in loop_constants(op):
            known = self.of(x)
            if known is not None and _small(arg) and known.shape == arg.type.shape:
                self._known[arg] = known

    def follow(self, op: Op) -> None:
        """Records the op's result, if its operands are known and numpy computes it exactly."""
        form = numpy_form(op)
        if form is None or not form.exact or len(op.results) != 1 or not _small(op.results[0]):
            return
        ins = [self.of(x) for x in op.operands]
        if all(x is not None for x in ins) and any(
            isinstance(x, Literal) or x in self._known for x in op.operands
        ):
            (result,) = op.results
            with np.errstate(all="ignore"):
                made = np.asarray(form.run(op.params, *ins), result.type.dtype)
            if made.shape == result.type.shape:
                self._known[result] = made


def loop_constants(op: Op) -> Iterator[tuple[Value, Operand]]:
    """Yields arguments of an op's regions that equal one operand in each run, with the operand."""
    if not op.regions:
        return
    edges = edges_of(op)
    carried = {(to, arg) for _, _, to, arg in edges.carries}
    alike: dict[tuple[int, int], list[Value]] = {}
    for r, i, s, j in edges.shared:
        alike.setdefault((s, j), []).append(op.regions[r].args[i])
    for operand, region, arg, stacked in edges.inputs:
        if not stacked and (region, arg) not in carried:
            for value in (op.regions[region].args[arg], *alike.get((region, arg), ())):
                yield value, op.operands[operand]


def _small(value: Value) -> bool:
    shape, dtype = value.type.shape, value.type.dtype
    if len(shape) > 2 or math.prod(shape) > MAX_ELEMENTS:
        return False
    return bool(dtype == np.bool_ or jnp.issubdtype(dtype, np.number))
