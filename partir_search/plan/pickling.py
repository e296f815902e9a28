"""Pickling errors of plans and partitioned functions, with the remedy."""

from __future__ import annotations

from typing import Any, TypeVar

_T = TypeVar("_T")


class Unpickled:
    """Mixin for functions bound to this process's devices: a deep copy is the function itself."""

    def __reduce__(self) -> Any:
        name = getattr(self, "__name__", "the function")
        raise TypeError(
            f"{name} is partitioned for this process's devices and cannot be pickled; pickle the"
            " plain function, and keep its plan with .plan(...).save(path)"
        )

    def __copy__(self: _T) -> _T:
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    def __deepcopy__(self: _T, memo: dict[int, Any]) -> _T:
        return self


class SavedInstead:
    """Mixin for plans: written by `save`, neither pickled nor deep-copied."""

    def __reduce__(self) -> Any:
        raise TypeError(
            "a Plan holds a traced program and its mesh, which cannot be pickled or copied deeply;"
            " write it with plan.save(path), and pass partir_search.load_plan(path) as schedule="
        )
