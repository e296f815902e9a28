"""Arrays of any size computed from constants alone: weights and positions of a resize."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from partir_search.ir.core import Literal, Op, Operand, Region, Value
from partir_search.passes.views.constants import loop_constants
from partir_search.rules.numpy_forms import numpy_form

MAX_ELEMENTS = 1 << 25  # elements of a value worth evaluating


class ConstantArrays:
    """Values of one region that depend on no argument, evaluated by numpy when asked for."""

    def __init__(self, region: Region, arrays: Mapping[Value, Callable[[], Any]]) -> None:
        """Constant arrays of a region.

        Args:
          arrays: functions returning the arrays of constants that enter the region.
        """
        self._region, self._arrays = region, arrays
        self._found: dict[Value, Any] = {}
        self._constant: dict[Value, bool] = {}

    @functools.cached_property
    def _makers(self) -> dict[Value, Op]:
        return {r: op for op in self._region.ops for r in op.results}

    def array(self, x: Operand) -> Any | None:
        """Returns the array of a value; None if it depends on arguments or is too large."""
        return self._evaluate(x) if self.is_known(x) else None

    def entering(self, op: Op) -> Iterator[tuple[Value, Callable[[], Any]]]:
        """Yields arguments of an op's regions equal in each run, with functions of their arrays."""
        for arg, x in loop_constants(op):
            if self.is_known(x):
                yield arg, functools.partial(self._evaluate, x)

    def is_known(self, x: Operand) -> bool:
        """True if a value depends on no argument, and is not too large."""
        if isinstance(x, Literal):
            return True
        if x in self._arrays:
            return math.prod(x.type.shape) <= MAX_ELEMENTS
        known = self._constant.get(x)
        if known is None:
            op = self._makers.get(x)
            fits = (
                op is not None
                and numpy_form(op) is not None
                and math.prod(x.type.shape) <= MAX_ELEMENTS
            )
            known = fits and op is not None and all(map(self.is_known, op.operands))
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
                form = numpy_form(op)
                assert form is not None
                made = form.run(op.params, *map(self._evaluate, op.operands))
            self._found[x] = np.asarray(made, np.dtype(x.type.dtype)).reshape(x.type.shape)
        return self._found[x]
