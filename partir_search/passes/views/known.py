"""Arrays that a program makes of nothing but its own numbers: weights and places of a resize."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from partir_search.ir.core import Literal, Op, Operand, Region, Value
from partir_search.passes.views.constants import loop_constants
from partir_search.rules.numpy_forms import numpy_form

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
        for arg, x in loop_constants(op):
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
            fits = op is not None and numpy_form(op) is not None and math.prod(x.type.shape) <= MOST
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
                form = numpy_form(op)
                assert form is not None
                made = form.run(op.params, *map(self._evaluate, op.operands))
            self._found[x] = np.asarray(made, np.dtype(x.type.dtype)).reshape(x.type.shape)
        return self._found[x]
