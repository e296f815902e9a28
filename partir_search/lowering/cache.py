"""Cache of the device-local programs of one module: local values, plans of ops and of regions."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, TypeVar

from partir_search.ir.analysis.axis_rows import AxisRows
from partir_search.ir.core import Value
from partir_search.ir.partition import Layout, Partition, Pending, Window
from partir_search.lowering.halo import shape_after
from partir_search.lowering.local_ir import LocalOp, Reshard
from partir_search.lowering.local_value import LocalValue, Source
from partir_search.lowering.reshard_steps import ReshardStep
from partir_search.lowering.traits import NEUTRAL, LoweringTraits

H = TypeVar("H", bound=Hashable)


@dataclasses.dataclass(frozen=True, slots=True)
class OpPlan:
    """An op under given loops and home layouts.

    Attributes:
      needs: per operand, the layout that the op reads.
      local_op: the op on operands in their home layouts; the instruction if nothing moves.
      moved: positions of operands that are resharded, or read by windows.
      reshards_results: True if the op makes some result in another layout than the home layout.
      windows: by position of an operand, the windows that the op reads instead of tiles.

    An op that reshards no operand and no result is not active (`ir.partition.active_ops`).
    """

    needs: tuple[Layout, ...]
    local_op: LocalOp
    moved: tuple[int, ...]
    reshards_results: bool
    windows: Mapping[int, tuple[Window, ...]]


@dataclasses.dataclass(frozen=True, slots=True)
class Ends:
    """Local values of a program's arguments and constants, and the layouts of its results."""

    constants: dict[int, LocalValue]
    args: tuple[LocalValue, ...]
    targets: tuple[Layout, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Crossing:
    """An op with regions and what crosses their borders.

    Attributes:
      plan: of the op, without its blocks.
      args / targets / results: per region, its arguments, the layouts in which its results
        leave the region, and the results in their home layouts.
    """

    plan: OpPlan
    args: tuple[tuple[LocalValue, ...], ...]
    targets: tuple[tuple[Layout, ...], ...]
    results: tuple[tuple[Source, ...], ...]


class LocalCache:
    """Cache of the states of one module on one mesh: rows of axes, local values and op plans.

    Attributes:
      traits: of the target's compiler.
    """

    def __init__(self, traits: LoweringTraits = NEUTRAL) -> None:
        self.traits = traits
        self.rows: dict[bytes, AxisRows] = {}
        self.local_values: dict[tuple[object, ...], LocalValue] = {}
        self.homes: dict[tuple[int, ...], dict[int, LocalValue]] = {}
        self.plans: dict[tuple[int, ...], dict[tuple[int, ...], OpPlan]] = {}
        self.reshards: dict[tuple[object, ...], tuple[Reshard, ...]] = {}
        self.alike: dict[Hashable, Any] = {}  # layouts and shapes: ops have few, and many the same
        self.ends: dict[tuple[object, ...], Ends] = {}
        self.crossings: dict[tuple[object, ...], Crossing] = {}
        self.regions: dict[int, dict[tuple[object, ...], OpPlan]] = {}

    def local(
        self, partition: Partition, value: Value, layout: Layout, pending: Pending
    ) -> LocalValue:
        key = (value.id, layout, pending)
        local = self.local_values.get(key)
        if local is None:
            layout, pending = self.one(layout), self.one(pending)
            shape = self.one(partition.local_shape(value.type.shape, layout))
            local = LocalValue(len(self.local_values), value, layout, pending, shape)
            self.local_values[value.id, layout, pending] = local
        return local

    def one(self, x: H) -> H:
        """The one object of all that equal `x`."""
        return self.alike.setdefault(x, x)  # type: ignore[no-any-return]

    def partial(self, local: LocalValue, offset: Hashable) -> LocalValue:
        """A block of a result, to which another device adds."""
        key = (local.id, offset)
        found = self.local_values.get(key)
        if found is None:
            found = LocalValue(
                len(self.local_values), local.value, local.layout, local.pending, local.shape
            )
            self.local_values[key] = found
        return found

    def placed(self, local: LocalValue, place: tuple[int, ...]) -> LocalValue:
        """A result of a ring at a place on its way; `local` itself at its own place."""
        return self.partial(local, place) if any(place) else local

    def after(
        self, local: LocalValue, step: ReshardStep, blocks: Sequence[LocalValue] = ()
    ) -> LocalValue:
        """The local value after a step of a window, joined with `blocks`."""
        key = (local.id, step, *(b.id for b in blocks))
        after = self.local_values.get(key)
        if after is None:
            shape = shape_after(local.shape, step)
            after = LocalValue(
                len(self.local_values), local.value, step.layout, step.pending, shape
            )
            self.local_values[key] = after
        return after
