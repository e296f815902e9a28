"""Actions on values: tile a dim, replicate, or close a dim along a mesh axis."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Self

from partir_search.ir.core import Module, Value
from partir_search.ir.rule import NONE, REPLICATED
from partir_search.propagation.actions.action import Action, FoldedNames
from partir_search.propagation.contradictions import (
    IllegalAction,
    already_decided,
    find_value,
    value_named,
)
from partir_search.propagation.state import State


class Tiling(Action):
    """An action on values.

    Attributes:
      mark: short text of the tiling; equal marks mean equal tilings of a value.
    """

    __slots__ = ()
    value: Any

    @property
    @abc.abstractmethod
    def mark(self) -> str: ...

    def renamed(self, name_of: Callable[[str], str]) -> Self:
        changed: dict[str, Any] = {"value": name_of(self.value)}
        for field in ("also", "barriers"):
            if names := getattr(self, field, ()):
                changed[field] = tuple(map(name_of, names))
        return dataclasses.replace(self, **changed)  # type: ignore[type-var]

    def within(self, module: Module) -> Self | None:
        values = _found(module, self.values)
        if not values:
            return None
        changed: dict[str, Any] = {"value": values[0]}
        for field, names in (("also", values[1:]), ("barriers", getattr(self, "barriers", ()))):
            if getattr(self, field, ()):
                changed[field] = _found(module, names)
        return dataclasses.replace(self, **changed)  # type: ignore[type-var]

    def _classes(self, state: State) -> list[int]:
        return classes_of(state, self.values)

    def _dim_checked(self, value: Value, dim: int) -> None:
        if not 0 <= dim < len(value.type.shape):
            raise IllegalAction(f"{self.value}: {value.type} has no dim {dim}")


class TilingAlike(Tiling):
    """An action on several values alike.

    Attributes:
      also: names of the values after the first.
    """

    __slots__ = ()
    also: Any

    @property
    def values(self) -> tuple[str, ...]:
        return (self.value, *self.also)

    def single(self) -> Sequence[Self]:
        alone = {"also": ()}
        return [dataclasses.replace(self, value=v, **alone) for v in self.values]  # type: ignore[type-var]


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Tile(TilingAlike):
    """Tile dim `dim` of the value named `value` on mesh axis `axis`.

    Attributes:
      also: names of equal values of further layers, tiled before propagation starts where
        undecided, for an effect independent of the order of layers.
      barriers: names of values left undecided by propagation, for a later action to tile
        differently with a reshard in between.
    """

    kind: ClassVar[str] = "tile"
    value: str
    dim: int
    axis: str
    also: tuple[str, ...] = ()
    barriers: tuple[str, ...] = ()

    @property
    def mark(self) -> str:
        return str(self.dim)

    def apply(self, state: State, path: str | None = None) -> None:
        """Tiles the value on the sub-axes of `axis` without this tile yet, and propagates."""
        path = path or self.value
        value = value_named(state.graph.module, self.value)
        cls, axes = state.graph.class_of[value.id], state.mesh.axes(self.axis)
        self._dim_checked(value, self.dim)
        also = classes_of(state, self.also)
        requested = f"tiled on dim {self.dim}"
        axes = tuple(a for a in axes if state.tiles[a][cls] != self.dim) or axes
        check_undecided(state, cls, axes, path, self.axis, requested)
        if any(state.is_closed(cls, self.dim, (a,)) for a in axes):
            raise IllegalAction(
                f"{path} cannot be {requested} along axis {self.axis!r}: its sharding is fixed,"
                " with None for that dim; give it UNCONSTRAINED there to leave it free"
            )
        if not state.may_tile(cls, self.dim, axes):
            rows = zip(state.mesh.names, state.tiles, strict=True)
            others = [name for name, row in rows if row[cls] == self.dim]
            raise IllegalAction(
                f"{path}: {value.type} dim {self.dim} does not divide by axis {self.axis!r} of size"
                f" {state.mesh.size(axes)}" + (f" on top of {others}" if others else "")
            )
        state.tile(cls, self.dim, axes, also, classes_of(state, self.barriers))

    def apply_folded(self, state: State, folded: FoldedNames) -> None:
        axes = state.mesh.axes(self.axis)
        classes = [c for c in folded.classes(self.values) if state.may_tile(c, self.dim, axes)]
        if classes:
            barriers = sorted(folded.classes(self.barriers))
            state.tile(classes[0], self.dim, axes, classes[1:], barriers)

    def is_applied(self, state: State) -> bool:
        axes = state.mesh.axes(self.axis)
        return all(state.tiles[a][c] == self.dim for a in axes for c in self._classes(state))

    def nearest(self, state: State) -> Iterator[Tile]:
        """Replacements for a tiling that does not divide: on the whole axis, then on sub-axes, most
        devices first. Padded forms of the values may take the place of the values.
        """
        graph = state.graph
        names = graph.module.value_names()
        values = [v for name in self.values for v in (name, f"{name}_padded") if v in names]
        barriers = tuple(b for b in self.barriers if b in names)
        try:
            axes = state.mesh.axes(self.axis)
        except ValueError:
            return
        for n in range(len(axes), 0, -1):
            for tiled in dict.fromkeys((axes[:n], axes[-n:])):
                able = [
                    name
                    for name in values
                    if self.dim < len(names[name].type.shape)
                    and state.may_tile(graph.class_of[names[name].id], self.dim, tiled)
                ]
                if able:
                    label = state.mesh.label(tiled)
                    yield Tile(able[0], self.dim, label, tuple(able[1:]), barriers)

    def with_barriers(self, names: Sequence[str]) -> Tile:
        return dataclasses.replace(self, barriers=tuple(dict.fromkeys((*self.barriers, *names))))

    def __str__(self) -> str:
        short = f", barriers={len(self.barriers)}" if self.barriers else ""
        where = f"dim={self.dim}, axis={self.axis!r}{short}"
        return f"Tile(value={self.value!r}{alike_text(self.also)}, {where})"


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Replicate(TilingAlike):
    """Keep the value named `value` replicated along mesh axis `axis` (PartIR's `atomic`).

    Attributes:
      also: names of further values to replicate where undecided.
    """

    kind: ClassVar[str] = "replicate"
    value: str
    axis: str
    also: tuple[str, ...] = ()

    @property
    def mark(self) -> str:
        return "whole"

    def apply(self, state: State, path: str | None = None) -> None:
        value = value_named(state.graph.module, self.value)
        cls, axes = state.graph.class_of[value.id], state.mesh.axes(self.axis)
        also = classes_of(state, self.also)
        check_undecided(state, cls, axes, path or self.value, self.axis, "replicated")
        state.replicate(cls, axes, also)

    def apply_folded(self, state: State, folded: FoldedNames) -> None:
        axes = state.mesh.axes(self.axis)
        classes = [c for c in folded.classes(self.values) if state.free(c, axes)]
        if classes:
            state.replicate(classes[0], axes, classes[1:])

    def is_applied(self, state: State) -> bool:
        axes = state.mesh.axes(self.axis)
        return all(state.tiles[a][c] == REPLICATED for a in axes for c in self._classes(state))

    def __str__(self) -> str:
        return f"Replicate(value={self.value!r}{alike_text(self.also)}, axis={self.axis!r})"


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Close(Tiling):
    """Close dim `dim` of the value named `value` to tiles on mesh axis `axis` (Shardy: closed)."""

    kind: ClassVar[str] = "bar"
    value: str
    dim: int
    axis: str

    @property
    def values(self) -> tuple[str, ...]:
        return (self.value,)

    @property
    def mark(self) -> str:
        return f"not {self.dim}"

    def apply(self, state: State, path: str | None = None) -> None:
        value = value_named(state.graph.module, self.value)
        cls, axes = state.graph.class_of[value.id], state.mesh.axes(self.axis)
        self._dim_checked(value, self.dim)
        if any(state.tiles[a][cls] == self.dim for a in axes):
            requested = f"closed on dim {self.dim}"
            raise already_decided(path or self.value, self.dim, self.axis, requested)
        state.close(cls, self.dim, axes)

    def apply_folded(self, state: State, folded: FoldedNames) -> None:
        for cls in folded.classes(self.values):
            state.close(cls, self.dim, state.mesh.axes(self.axis))

    def is_applied(self, state: State) -> bool:
        axes = state.mesh.axes(self.axis)
        return all(state.is_closed(c, self.dim, axes) for c in self._classes(state))


def _found(module: Module, names: Sequence[str]) -> tuple[str, ...]:
    return tuple(name for name in names if find_value(module, name) is not None)


def classes_of(state: State, names: Sequence[str]) -> list[int]:
    """Classes of named values.

    Raises:
      IllegalAction: the program has no value of a name.
    """
    module, class_of = state.graph.module, state.graph.class_of
    return [class_of[value_named(module, name).id] for name in names]


def check_undecided(
    state: State, cls: int, axes: Sequence[int], path: str, axis: str, requested: str
) -> None:
    """Raises IllegalAction if a class is tiled or replicated along one of `axes`.

    Args:
      path, axis, requested: value, axis and tiling for the message, as in `already_decided`.
    """
    for a in axes:
        if state.tiles[a][cls] != NONE:
            raise already_decided(path, state.tiles[a][cls], axis, requested)


def alike_text(also: tuple[str, ...]) -> str:
    """Number of further values, for the text of an action."""
    return f" and {len(also)} alike" if also else ""
