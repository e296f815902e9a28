"""Actions on arguments and results with a separate layout at the program's boundary."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from partir_search.ir.core import Operand
from partir_search.ir.partition import Layout
from partir_search.propagation.actions.action import Action, FoldedNames
from partir_search.propagation.contradictions import IllegalAction
from partir_search.propagation.state import State


class End(Action):
    """Layout of one argument or result at the boundary of the program.

    Attributes:
      layout: [dims] mesh axes tiling the dim, major to minor, joined by "+"; "" for none.
    """

    __slots__ = ()
    layout: tuple[str, ...]

    @property
    def axis(self) -> str:
        """All axes of the layout."""
        return "+".join(label for label in self.layout if label)

    def apply_folded(self, state: State, folded: FoldedNames) -> None:
        """No effect: a fold keeps the boundary layouts of the whole program."""

    def _axes(self, state: State, ends: Sequence[Operand], number: int) -> tuple[int, Layout]:
        """(number, layout as positions of axes).

        Raises:
          IllegalAction: the layout does not fit the shape of argument or result `number`.
        """
        shape = ends[number].type.shape if 0 <= number < len(ends) else None
        axes = [state.mesh.axes(label) if label else () for label in self.layout]
        used = [a for each in axes for a in each]
        if (
            shape is None
            or len(shape) != len(axes)
            or len(set(used)) < len(used)
            or any(n % state.mesh.size(each) for n, each in zip(shape, axes, strict=True))
        ):
            raise IllegalAction(f"{self} does not fit: the shape there is {shape}")
        return number, tuple(axes)


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Enter(End):
    """Pass argument number `argument` in `layout`; the program reshards it to the layout of the
    value.
    """

    kind: ClassVar[str] = "enter"
    argument: int
    layout: tuple[str, ...]

    def apply(self, state: State, path: str | None = None) -> None:
        end = self._axes(state, state.graph.module.body.args, self.argument)
        state.modes = dataclasses.replace(
            state.modes, argument_layouts=(*state.modes.argument_layouts, end)
        )


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Leave(End):
    """Return result number `result` in `layout`, resharded from the layout of the value, without a
    tie to an argument.
    """

    kind: ClassVar[str] = "leave"
    result: int
    layout: tuple[str, ...]

    def apply(self, state: State, path: str | None = None) -> None:
        end = self._axes(state, state.graph.module.body.results, self.result)
        state.modes = dataclasses.replace(
            state.modes, result_layouts=(*state.modes.result_layouts, end)
        )
