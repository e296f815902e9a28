"""Actions: the small frozen values of which a plan consists."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Self

from partir_search.propagation.state import State

ClassesOf = Callable[[Sequence[str]], list[int]]


class Action(abc.ABC):
    """A decision about values or mesh axes; a subclass is a frozen dataclass.

    Attributes:
      kind: name of the subclass in saved plans, where it is the key of the first field.
      axis: mesh axis that the action concerns; several of them joined by "+".
      values: names of the values that the action decides; () for actions on axes.
    """

    __slots__ = ()
    kind: ClassVar[str]
    axis: Any

    @property
    def values(self) -> tuple[str, ...]:
        return ()

    @abc.abstractmethod
    def apply(self, state: State, path: str | None = None) -> None:
        """Plays the action on a state.

        Args:
          path: name of the value in messages, where it is not the action's own.

        Raises:
          IllegalAction: the state does not admit the action.
        """

    @abc.abstractmethod
    def apply_folded(self, state: State, classes_of: ClassesOf) -> None:
        """Plays the action on the state of a folded program, as far as that admits it.

        Args:
          classes_of: the folded program's classes of the values with some names.
        """

    def is_applied(self, state: State) -> bool:
        """True if the state has all values as the action wants them; False for actions on axes."""
        return False

    def single(self) -> tuple[Self, ...]:
        """The action on each of its values alone; () if a partial effect is not allowed."""
        return ()

    def nearest(self, state: State) -> Iterator[Action]:
        """Actions of a similar effect that a state admits, for one that it refuses."""
        return iter(())

    def renamed(self, name_of: Callable[[str], str]) -> Self:
        """The same action on values of other names."""
        return self

    def with_barriers(self, names: Sequence[str]) -> Self:
        """The same action, whose propagation leaves some more values undecided."""
        return self

    def __str__(self) -> str:
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        values = [(field, getattr(self, field.name)) for field in fields]
        told = [f"{field.name}={x!r}" for field, x in values if x != field.default]
        return f"{type(self).__name__}({', '.join(told)})"

    def to_json(self) -> dict[str, Any]:
        """Fields by name, without those that have their default."""
        first, *others = dataclasses.fields(self)  # type: ignore[arg-type]
        found = {self.kind: _plain(getattr(self, first.name))}
        for field in others:
            value = getattr(self, field.name)
            if value != field.default:
                found[field.name] = _plain(value)
        return found

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Inverse of `to_json`; KeyError, TypeError or ValueError for anything else."""
        first, *others = dataclasses.fields(cls)  # type: ignore[arg-type]
        given = {first.name: _read(first, data[cls.kind])}
        for field in others:
            if field.name in data or field.default is dataclasses.MISSING:
                given[field.name] = _read(field, data[field.name])
        return cls(**given)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _read(field: Any, value: Any) -> Any:
    """A field's value from JSON; a TypeError for one of another type."""
    if field.type == "tuple[str, ...]" and isinstance(value, list):
        return tuple(_typed(str, field.name, x) for x in value)
    kinds = {"bool": bool, "int": int, "str": str}
    return _typed(kinds.get(field.type, list), field.name, value)


def _typed(kind: type, name: str, value: Any) -> Any:
    if type(value) is not kind:
        raise TypeError(f"{name} of an action is of type {kind.__name__}, not {value!r}")
    return value
