"""Actions: the small frozen values that a plan is made of."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Union


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Tile:
    """Tile dim `dim` of the value named `value` on mesh axis `axis`.

    Values named in `also` (the same one of other layers) are tiled in the same move, before
    anything propagates, as far as they are undecided: what is done to layers at once must not
    depend on their order. Propagation leaves the values named in `barriers` undecided: another
    action tiles them otherwise, and what rests in one way is moved where it is needed in another.
    """

    value: str
    dim: int
    axis: str
    also: tuple[str, ...] = ()
    barriers: tuple[str, ...] = ()

    @property
    def values(self) -> tuple[str, ...]:
        return (self.value, *self.also)

    def to_json(self) -> dict[str, Any]:
        also = {"also": list(self.also)} if self.also else {}
        barriers = {"barriers": list(self.barriers)} if self.barriers else {}
        return {"tile": self.value, **also, "dim": self.dim, "axis": self.axis, **barriers}

    def __str__(self) -> str:
        short = f", barriers={len(self.barriers)}" if self.barriers else ""
        where = f"dim={self.dim}, axis={self.axis!r}{short}"
        return f"Tile(value={self.value!r}{_alike(self.also)}, {where})"


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Replicate:
    """Keep the value named `value` whole along mesh axis `axis` (PartIR's `atomic`), and those
    named in `also` that are undecided.
    """

    value: str
    axis: str
    also: tuple[str, ...] = ()

    @property
    def values(self) -> tuple[str, ...]:
        return (self.value, *self.also)

    def to_json(self) -> dict[str, Any]:
        also = {"also": list(self.also)} if self.also else {}
        return {"replicate": self.value, **also, "axis": self.axis}

    def __str__(self) -> str:
        return f"Replicate(value={self.value!r}{_alike(self.also)}, axis={self.axis!r})"


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Bar:
    """Never tile dim `dim` of the value named `value` on mesh axis `axis`; other dims are free."""

    value: str
    dim: int
    axis: str

    @property
    def values(self) -> tuple[str, ...]:
        return (self.value,)

    def to_json(self) -> dict[str, Any]:
        return {"bar": self.value, "dim": self.dim, "axis": self.axis}

    def __str__(self) -> str:
        return f"Bar(value={self.value!r}, dim={self.dim}, axis={self.axis!r})"


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Stream:
    """Collective matmul and ring attention along mesh axis `axis`: products walk what is gathered
    or scattered for them, block by block, while the blocks pass around the axis.

    Attributes:
      zigzag: whether attention in which no position looks at later ones takes its sequences in
        chunks from both ends (`lowering/zigzag.py`), so that devices have equal work.
    """

    axis: str
    zigzag: bool = False

    def to_json(self) -> dict[str, Any]:
        return {"stream": self.axis, **({"zigzag": True} if self.zigzag else {})}

    def __str__(self) -> str:
        return f"Stream(axis={self.axis!r}{', zigzag=True' if self.zigzag else ''})"


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Hold:
    """Holds copies gathered along mesh axis `axis` in the forward pass for the backward pass.

    Without this action, late uses gather them again.
    """

    axis: str

    def to_json(self) -> dict[str, Any]:
        return {"hold": self.axis}

    def __str__(self) -> str:
        return f"Hold(axis={self.axis!r})"


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class RingForm:
    """Rings on the diagonal `axis` walk in another form: "result" (default), "least" or "paper".

    See `ir/skewed_schedule.py`.
    """

    axis: str
    form: str

    def to_json(self) -> dict[str, Any]:
        return {"ring": self.axis, "form": self.form}

    def __str__(self) -> str:
        return f"RingForm(axis={self.axis!r}, form={self.form!r})"


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Nest:
    """Makes the earlier named of the mesh axes `axis` ("a+b") major where several tile one dim."""

    axis: str

    def to_json(self) -> dict[str, Any]:
        return {"nest": self.axis}

    def __str__(self) -> str:
        return f"Nest(axis={self.axis!r})"


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Enter:
    """The argument number `argument` comes in a layout of its own, in which it need not rest.

    Attributes:
      layout: per dim the mesh axes that tile it, major to minor ("a+b"; "" for none).
    """

    argument: int
    layout: tuple[str, ...]

    @property
    def axis(self) -> str:
        """All axes that it names."""
        return "+".join(label for label in self.layout if label)

    def to_json(self) -> dict[str, Any]:
        return {"enter": self.argument, "layout": list(self.layout)}

    def __str__(self) -> str:
        return f"Enter(argument={self.argument}, layout={self.layout})"


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Leave:
    """The result number `result` leaves in a layout of its own, in which it need not rest. It is
    not tied to an argument.

    Attributes:
      layout: per dim the mesh axes that tile it, major to minor ("a+b"; "" for none).
    """

    result: int
    layout: tuple[str, ...]

    @property
    def axis(self) -> str:
        """All axes that it names."""
        return "+".join(label for label in self.layout if label)

    def to_json(self) -> dict[str, Any]:
        return {"leave": self.result, "layout": list(self.layout)}

    def __str__(self) -> str:
        return f"Leave(result={self.result}, layout={self.layout})"


def _alike(also: tuple[str, ...]) -> str:
    return f" and {len(also)} alike" if also else ""


Tiling = Union[Tile, Replicate, Bar]
Mode = Union[Stream, Hold, RingForm, Nest]
End = Union[Enter, Leave]
Action = Union[Tiling, Mode, End]


class IllegalAction(ValueError):
    """An action that the state does not admit; the message names value, axis and remedy."""


def action_from_json(data: dict[str, Any]) -> Action:
    """Inverse of `to_json`; a ValueError for anything else."""
    also = tuple(map(str, data.get("also", ())))
    if "tile" in data:
        barriers = tuple(map(str, data.get("barriers", ())))
        return Tile(str(data["tile"]), int(data["dim"]), str(data["axis"]), also, barriers)
    if "replicate" in data:
        return Replicate(str(data["replicate"]), str(data["axis"]), also)
    if "bar" in data:
        return Bar(str(data["bar"]), int(data["dim"]), str(data["axis"]))
    if "stream" in data:
        return Stream(str(data["stream"]), bool(data.get("zigzag")))
    if "hold" in data:
        return Hold(str(data["hold"]))
    if "ring" in data:
        return RingForm(str(data["ring"]), str(data["form"]))
    if "nest" in data:
        return Nest(str(data["nest"]))
    if "enter" in data:
        return Enter(int(data["enter"]), tuple(map(str, data["layout"])))
    if "leave" in data:
        return Leave(int(data["leave"]), tuple(map(str, data["layout"])))
    raise ValueError(f"not an action: {data!r}")


def renamed(action: Action, name_of: Callable[[str], str]) -> Action:
    """The same action on values of other names."""
    if not isinstance(action, Tile | Replicate | Bar):
        return action
    changed: dict[str, Any] = {"value": name_of(action.value)}
    for field in ("also", "barriers"):
        if names := getattr(action, field, ()):
            changed[field] = tuple(map(name_of, names))
    return dataclasses.replace(action, **changed)


def tilings(actions: Sequence[Action]) -> list[Tiling]:
    """Actions on values, not on axes."""
    return [a for a in actions if isinstance(a, Tile | Replicate | Bar)]
