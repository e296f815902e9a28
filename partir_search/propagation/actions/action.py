"""Base class of actions, the small frozen values in a plan."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Protocol, Self

from partir_search.ir.core import Module
from partir_search.propagation.state import State


class FoldedNames(Protocol):
    """Names of values of the unfolded program, in the graph of the folded one."""

    def classes(self, names: Sequence[str]) -> list[int]:
        """Classes of the values."""

    def nodes(self, names: Sequence[str]) -> list[int]:
        """Nodes of the ops with the values as results."""


class Action(abc.ABC):
    """A decision about values or mesh axes; a subclass is a frozen dataclass.

    Attributes:
      kind: name of the subclass in saved plans, the JSON key of its first field.
      axis: mesh axis of the decision; several axes joined by "+".
      values: names of the decided values; () for actions on mesh axes.
    """

    __slots__ = ()
    kind: ClassVar[str]
    axis: Any

    @property
    def values(self) -> tuple[str, ...]:
        return ()

    @abc.abstractmethod
    def apply(self, state: State, path: str | None = None) -> None:
        """Applies the action to a state.

        Args:
          path: name of the value in error messages; default: the action's.

        Raises:
          IllegalAction: the action is illegal in the state.
        """

    @abc.abstractmethod
    def apply_folded(self, state: State, folded: FoldedNames) -> None:
        """Applies the action as far as legal to the state of a folded program."""

    def is_applied(self, state: State) -> bool:
        """True if the state has the decision for all values; False for actions on mesh axes."""
        return False

    def single(self) -> Sequence[Self]:
        """One action per value; () for actions on mesh axes, `End`s and `Close`."""
        return ()

    def nearest(self, state: State) -> Iterator[Action]:
        """Legal actions of a similar effect, best first, to replace an illegal one."""
        return iter(())

    def renamed(self, name_of: Callable[[str], str]) -> Self:
        """The action on values renamed by `name_of`."""
        return self

    def within(self, module: Module) -> Self | None:
        """The action on the values that a program has; None without any."""
        return self

    def with_barriers(self, names: Sequence[str]) -> Self:
        """The action with further barriers: values left undecided by its propagation."""
        return self

    def __str__(self) -> str:
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        values = [(field, getattr(self, field.name)) for field in fields]
        shown = [f"{field.name}={x!r}" for field, x in values if x != field.default]
        return f"{type(self).__name__}({', '.join(shown)})"

    def to_json(self) -> dict[str, Any]:
        """Fields by name, defaults omitted."""
        first, *others = dataclasses.fields(self)  # type: ignore[arg-type]
        found = {self.kind: _plain(getattr(self, first.name))}
        for field in others:
            value = getattr(self, field.name)
            if value != field.default:
                found[field.name] = _plain(value)
        return found

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Inverse of `to_json`; KeyError, TypeError or ValueError for invalid data."""
        first, *others = dataclasses.fields(cls)  # type: ignore[arg-type]
        given = {first.name: _read(first, data[cls.kind])}
        for field in others:
            if field.name in data or field.default is dataclasses.MISSING:
                given[field.name] = _read(field, data[field.name])
        return cls(**given)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _read(field: Any, value: Any) -> Any:
    """Value of a field from JSON; TypeError if its type is wrong."""
    if field.type == "tuple[str, ...]" and isinstance(value, list):
        return tuple(_typed(str, field.name, x) for x in value)
    kinds = {"bool": bool, "int": int, "str": str}
    return _typed(kinds.get(field.type, list), field.name, value)


def _typed(kind: type, name: str, value: Any) -> Any:
    if type(value) is not kind:
        raise TypeError(f"{name} of an action is of type {kind.__name__}, not {value!r}")
    return value
