"""Cache that device-local programs of one module share: slots, plans of ops and of regions."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, TypeVar

from partir_search.ir.analysis.axis_rows import AxisRows
from partir_search.ir.core import Value
from partir_search.ir.partition import Layout, Partition, Pending, Window
from partir_search.lowering.halo import stretched
from partir_search.lowering.local_ir import Apply, Move
from partir_search.lowering.reshard import Step
from partir_search.lowering.slots import Slot, Source
from partir_search.lowering.traits import NEUTRAL, LoweringTraits

H = TypeVar("H", bound=Hashable)


@dataclasses.dataclass(frozen=True, slots=True)
class OpPlan:
    """An op under given loops and resting layouts.

    Attributes:
      needs: layout that each operand is needed in.
      apply: the op with every operand at rest; the instruction itself where nothing moves.
      moved: operand positions that must be redistributed, or read otherwise than by tiles.
      windows: stretches that are read otherwise than by tiles, by operand position.
      settles: whether some result is made in another slot than it rests in.

    An op that neither moves nor settles anything is not active (`ir.partition.active_ops`).
    """

    needs: tuple[Layout, ...]
    apply: Apply
    moved: tuple[int, ...]
    settles: bool
    windows: Mapping[int, tuple[Window, ...]]


@dataclasses.dataclass(frozen=True, slots=True)
class Ends:
    """Slots of a program's arguments and constants, and the layouts that results leave in."""

    constants: dict[int, Slot]
    args: tuple[Slot, ...]
    targets: tuple[Layout, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Crossing:
    """An op with regions and what crosses their borders.

    Attributes:
      plan: of the op, without its blocks.
      args / targets / results: by region, the slots of its arguments, the layouts in which its
        results leave, and the slots in which they rest.
    """

    plan: OpPlan
    args: tuple[tuple[Slot, ...], ...]
    targets: tuple[tuple[Layout, ...], ...]
    results: tuple[tuple[Source, ...], ...]


class LocalCache:
    """Cache that the states of one module on one mesh share: rows of axes, slots and op plans.

    Attributes:
      traits: of the target's compiler.
    """

    def __init__(self, traits: LoweringTraits = NEUTRAL) -> None:
        self.traits = traits
        self.rows: dict[bytes, AxisRows] = {}
        self.slots: dict[tuple[object, ...], Slot] = {}
        self.rests: dict[tuple[int, ...], dict[int, Slot]] = {}
        self.plans: dict[tuple[int, ...], dict[tuple[int, ...], OpPlan]] = {}
        self.moves: dict[tuple[object, ...], tuple[Move, ...]] = {}
        self.alike: dict[Hashable, Any] = {}  # layouts and shapes: ops have few, and many the same
        self.ends: dict[tuple[object, ...], Ends] = {}
        self.crossings: dict[tuple[object, ...], Crossing] = {}
        self.regions: dict[int, dict[tuple[object, ...], OpPlan]] = {}

    def slot(self, partition: Partition, value: Value, layout: Layout, pending: Pending) -> Slot:
        key = (value.id, layout, pending)
        slot = self.slots.get(key)
        if slot is None:
            layout, pending = self.one(layout), self.one(pending)
            shape = self.one(partition.local_shape(value.type.shape, layout))
            slot = Slot(len(self.slots), value, layout, pending, shape)
            self.slots[value.id, layout, pending] = slot
        return slot

    def one(self, x: H) -> H:
        """The one object of all that equal `x`."""
        return self.alike.setdefault(x, x)  # type: ignore[no-any-return]

    def partial(self, slot: Slot, offset: Hashable) -> Slot:
        """A block of a result that another device adds to."""
        key = (slot.id, offset)
        found = self.slots.get(key)
        if found is None:
            found = Slot(len(self.slots), slot.value, slot.layout, slot.pending, slot.shape)
            self.slots[key] = found
        return found

    def placed(self, slot: Slot, place: tuple[int, ...]) -> Slot:
        """A result of a ring, somewhere on its way; `slot` itself where it belongs."""
        return self.partial(slot, place) if any(place) else slot

    def stretched(self, slot: Slot, step: Step, blocks: Sequence[Slot] = ()) -> Slot:
        """The slot after one step of a window, put together with `blocks`."""
        key = (slot.id, step, *(b.id for b in blocks))
        after = self.slots.get(key)
        if after is None:
            shape = stretched(slot.shape, step)
            after = Slot(len(self.slots), slot.value, step.layout, step.pending, shape)
            self.slots[key] = after
        return after
