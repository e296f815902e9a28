"""Cache of the device-local programs of one module: local values, plans of ops and of regions."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, TypeVar

from partir_search.ir.analysis.axis_rows import AxisRows
from partir_search.ir.core import Value
from partir_search.ir.partition import Layout, Partial, Partition, Window
from partir_search.lowering.halo import shape_after
from partir_search.lowering.local_ir import LocalOp, Reshard
from partir_search.lowering.local_value import LocalValue, Source
from partir_search.lowering.reshard_steps import ReshardStep
from partir_search.lowering.traits import NEUTRAL, LoweringTraits

H = TypeVar("H", bound=Hashable)


@dataclasses.dataclass(frozen=True, slots=True)
class OpPlan:
    """Lowering of one op under given loops and home layouts.

    An op without moved operands and without resharded results is not active
    (`ir.partition.active_ops`); sparse programs leave the op out.

    Attributes:
      needs: layout read by the op, per operand.
      local_op: instruction on operands in their home layouts.
      moved: positions of operands that are resharded or read by windows.
      reshards_results: True if a result's layout in the op differs from the home layout.
      windows: windows read instead of tiles, by position of an operand.
      joining: axes on whose first device alone a scalar joins partial sums, by position.
    """

    needs: tuple[Layout, ...]
    local_op: LocalOp
    moved: tuple[int, ...]
    reshards_results: bool
    windows: Mapping[int, tuple[Window, ...]]
    joining: Mapping[int, tuple[int, ...]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class Boundary:
    """Local values of a program's arguments and constants, and layouts of the results.

    Attributes:
      constants: closed-over arrays by value id.
      targets: layouts of the results.
    """

    constants: dict[int, LocalValue]
    args: tuple[LocalValue, ...]
    targets: tuple[Layout, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class RegionBoundary:
    """Lowering of an op with regions, apart from the regions' contents.

    Attributes:
      plan: lowering of the op, without blocks.
      args: arguments per region.
      targets: layouts per region in which the results leave the region.
      results: results per region, in their home layouts.
    """

    plan: OpPlan
    args: tuple[tuple[LocalValue, ...], ...]
    targets: tuple[tuple[Layout, ...], ...]
    results: tuple[tuple[Source, ...], ...]


class LocalCache:
    """Cache of the partitions of one module on one mesh: axis rows, local values and op plans.

    Attributes:
      traits: traits of the target's compiler.
      rows: rows of one axis, by the axis's loops and tiles.
      local_values: local values by value, layout and partial sums, and by source and step.
      homes: values in their home layouts, by order of axes and the value's code (`codes_of`).
      plans: plans of ops, by order of axes and codes of the op and the values around.
      reshards: steps of redistributions of sparse programs.
      interned: one object per layout and shape; a module has few distinct ones.
      boundaries / region_boundaries: boundaries of programs, and of ops with regions.
      regions: plans of ops with regions, by op; at most `MAX_REGION_PLANS` per op.
    """

    def __init__(self, traits: LoweringTraits = NEUTRAL) -> None:
        self.traits = traits
        self.rows: dict[bytes, AxisRows] = {}
        self.local_values: dict[tuple[object, ...], LocalValue] = {}
        self.homes: dict[tuple[int, ...], dict[int, LocalValue]] = {}
        self.plans: dict[tuple[int, ...], dict[tuple[int, ...], OpPlan]] = {}
        self.reshards: dict[tuple[object, ...], tuple[Reshard, ...]] = {}
        self.interned: dict[Hashable, Any] = {}
        self.boundaries: dict[tuple[object, ...], Boundary] = {}
        self.region_boundaries: dict[tuple[object, ...], RegionBoundary] = {}
        self.regions: dict[int, dict[tuple[object, ...], OpPlan]] = {}

    def local(
        self, partition: Partition, value: Value, layout: Layout, partial: Partial
    ) -> LocalValue:
        """Local value of `value` in a layout with partial sums."""
        key = (value.id, layout, partial)
        local = self.local_values.get(key)
        if local is None:
            layout, partial = self.intern(layout), self.intern(partial)
            shape = self.intern(partition.local_shape(value.type.shape, layout))
            local = LocalValue(len(self.local_values), value, layout, partial, shape)
            self.local_values[value.id, layout, partial] = local
        return local

    def intern(self, x: H) -> H:
        """First object equal to `x` among the objects passed."""
        return self.interned.setdefault(x, x)  # type: ignore[no-any-return]

    def partial_block(self, local: LocalValue, offset: Hashable) -> LocalValue:
        """Block number `offset` of a result of a ring, in the result's layout."""
        key = (local.id, offset)
        found = self.local_values.get(key)
        if found is None:
            found = LocalValue(
                len(self.local_values), local.value, local.layout, local.partial, local.shape
            )
            self.local_values[key] = found
        return found

    def ring_block(self, local: LocalValue, place: tuple[int, ...]) -> LocalValue:
        """Result of a ring at given offsets (`Ring.place`); `local` itself at offsets of 0."""
        return self.partial_block(local, place) if any(place) else local

    def after_step(
        self, local: LocalValue, step: ReshardStep, blocks: Sequence[LocalValue] = ()
    ) -> LocalValue:
        """Local value after a permute or a step of a window, joined with received `blocks`."""
        key = (local.id, step, *(b.id for b in blocks))
        after = self.local_values.get(key)
        if after is None:
            shape = shape_after(local.shape, step)
            after = LocalValue(
                len(self.local_values), local.value, step.layout, step.partial, shape
            )
            self.local_values[key] = after
        return after
