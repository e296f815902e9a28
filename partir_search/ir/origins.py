"""Source info of equations, in the user's code."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from partir_search.ir.source_names import user_frame


class Origins:
    """jax's source info of equations, one object per traceback.

    jax traces a library's jitted functions (`jnp.var`, `jax.nn.relu`) once, without the frames of
    their callers. The equations of such a function have the source info of its call.
    """

    def __init__(self) -> None:
        self._own: dict[Any, Any] = {}  # by traceback: large, and shared by equal layers
        self._call: Any = None  # of the innermost call around

    def __call__(self, eqn: Any) -> Any:
        """Source info of an equation, or of the call around."""
        info = eqn.source_info
        if info.traceback not in self._own:
            self._own[info.traceback] = info if user_frame(info) else None
        return self._own[info.traceback] or self._call or info

    @contextlib.contextmanager
    def within(self, eqn: Any) -> Iterator[None]:
        """Context of reading the body of an equation."""
        outer, self._call = self._call, self(eqn)
        try:
            yield
        finally:
            self._call = outer
