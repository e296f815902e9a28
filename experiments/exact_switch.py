"""Planning with exact steps and without."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from unittest import mock

from partir_search.planning import answers_in_space, planner
from partir_search.planning.exact_answer import ExactAnswer


@contextlib.contextmanager
def exact_steps(on: bool) -> Iterator[None]:
    """Plans made inside have exact steps (`on`), or have the search alone."""
    with contextlib.ExitStack() as stack:
        if not on:
            for user in (planner, answers_in_space):
                stack.enter_context(
                    mock.patch.object(user, "exact_moves", return_value=ExactAnswer())
                )
        yield
