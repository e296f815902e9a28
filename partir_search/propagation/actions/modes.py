"""Actions on mesh axes: collective matmuls, rings, gathered copies, the order of axes."""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, ClassVar, Self

from partir_search.ir.axis_options import Modes
from partir_search.ir.skewed_schedule import FORMER_FORMS, FORMS
from partir_search.messages.renamed import warn_renamed
from partir_search.propagation.actions.action import Action, FoldedNames
from partir_search.propagation.contradictions import IllegalAction
from partir_search.propagation.state import State


def ring_form(form: str, stacklevel: int = 5) -> str:
    """The current name of a ring schedule, checked; a former name warns.

    Args:
      form: one of `FORMS`, or a key of `FORMER_FORMS`.
      stacklevel: frames between the warning and the user's line; 5 for the `__post_init__` of a
        dataclass.

    Raises:
      ValueError: there is no schedule of this name.
    """
    if not isinstance(form, str) or form not in {*FORMS, *FORMER_FORMS}:
        raise ValueError(f"form is one of {', '.join(FORMS)}, not {form!r}")
    if form in FORMER_FORMS:
        warn_renamed(f"form={form!r}", repr(FORMER_FORMS[form]), stacklevel)
    return FORMER_FORMS.get(form, form)


class Mode(Action):
    """An option of a mesh axis, besides tilings."""

    __slots__ = ()

    @abc.abstractmethod
    def chosen(self, modes: Modes, axes: tuple[int, ...]) -> Modes:
        """Modes with this option on `axes`."""

    def apply(self, state: State, path: str | None = None) -> None:
        state.modes = self.chosen(state.modes, state.mesh.axes(self.axis))

    def apply_folded(self, state: State, folded: FoldedNames) -> None:
        """No effect: of the options only `AxisOrder` matters to a folded program."""


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class WindowedEinsum(Mode):
    """Collective matmul (XLA: windowed einsum) and ring attention along mesh axis `axis`.

    Gathered operands or scattered results pass around the axis block by block; the product with
    each block overlaps the transfer of the next block.

    Attributes:
      zigzag: each device of a causal attention holds one chunk from either end of the sequence, for
        equal work (`lowering/zigzag.py`).
    """

    kind: ClassVar[str] = "stream"
    axis: str
    zigzag: bool = False

    def chosen(self, modes: Modes, axes: tuple[int, ...]) -> Modes:
        streams = {**modes.windowed_einsums, **dict.fromkeys(axes, self.zigzag)}
        return dataclasses.replace(modes, windowed_einsums=streams)


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class KeepGathered(Mode):
    """Keep copies gathered along mesh axis `axis` in the forward pass for the backward pass.

    Without this action the backward pass gathers again (PyTorch FSDP2's `reshard_after_forward`).
    """

    kind: ClassVar[str] = "hold"
    axis: str

    def chosen(self, modes: Modes, axes: tuple[int, ...]) -> Modes:
        return dataclasses.replace(modes, keep_gathered=modes.keep_gathered.union(axes))


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class RingSchedule(Mode):
    """Schedule of rings on the diagonal `axis`.

    Attributes:
      form: "output_stationary", "min_traffic" or "primepar", defined in `ir/skewed_schedule.py`.
        Rings without this action are output-stationary.
    """

    kind: ClassVar[str] = "ring"
    axis: str
    form: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "form", ring_form(self.form))

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """The action of a plan file; former names of schedules are read without a warning."""
        form = data["form"]
        known = FORMER_FORMS.get(form, form) if isinstance(form, str) else form
        # A dataclass with slots is a second class: `super()` would name the first.
        return super(RingSchedule, cls).from_json({**data, "form": known})

    def chosen(self, modes: Modes, axes: tuple[int, ...]) -> Modes:
        return dataclasses.replace(
            modes, ring_schedules={**modes.ring_schedules, **dict.fromkeys(axes, self.form)}
        )


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class AxisOrder(Mode):
    """Order of the mesh axes `axis` ("a+b"), major to minor, on every dim with several of them."""

    kind: ClassVar[str] = "nest"
    axis: str

    def chosen(self, modes: Modes, axes: tuple[int, ...]) -> Modes:
        """Modes with the order of axes.

        Raises:
          IllegalAction: the order contradicts an earlier one.
        """
        pairs = {(a, b) for i, a in enumerate(axes) for b in axes[i + 1 :]}
        nested = dataclasses.replace(modes, axis_orders=modes.axis_orders | pairs)
        try:
            nested.ordered(sorted({a for pair in nested.axis_orders for a in pair}))
        except ValueError:
            raise IllegalAction(
                f"one dim is to be tiled by {self.axis!r}, major to minor, and another one in"
                " another order; axes have one order in a program"
            ) from None
        return nested

    def apply_folded(self, state: State, folded: FoldedNames) -> None:
        self.apply(state)
