"""Builds the device-local program of a partition.

Every value has one home layout. An op reads operands and makes results in the layouts of the op's
loops; differences from home layouts become reshards, right after the producer of a value and right
before a consumer. A resharded copy is shared by nearby uses in one pass (forward or backward) and
made again for later uses: parameters stay sharded between uses (ZeRO-3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np
import numpy.typing as npt

from partir_search.ir.core import Module, Region, Value
from partir_search.ir.partition import Layout, Partition
from partir_search.lowering.builder import RegionBuilder
from partir_search.lowering.cache import Boundary, LocalCache
from partir_search.lowering.diagonals import without_diagonals
from partir_search.lowering.home_layouts import AtHome, HomeLayouts
from partir_search.lowering.local_ir import LocalProgram, LocalRegion
from partir_search.lowering.local_value import LocalValue, Source, layout_of


def localize(
    partition: Partition, cache: LocalCache | None = None, *, sparse: bool = False
) -> LocalProgram:
    """Device-local program of `partition`, before scheduling.

    Args:
      cache: cache of the same module, mesh and target; a new one by default.
      sparse: leave out ops with all operands and results in their home layouts, the majority. The
        simulated cost and the collectives are equal, and lowering is several times faster.
    """
    return Localizer(partition, cache or LocalCache(), sparse).program()


class Localizer(HomeLayouts):
    """Lowering of a partition to a device-local program."""

    def program(self) -> LocalProgram:
        """Device-local program of the partition."""
        if self._is_at_home:
            return self._program_at_home()
        body = self.module.body
        boundary = [*self.module.constants, *(v.id for v in body.args)]
        boundary += [r.id for r in body.results if isinstance(r, Value)]
        modes = self.partition.modes
        key = (
            self.order,
            modes.argument_layouts,
            modes.result_layouts,
            *[self.home_codes[v] for v in boundary],
        )
        ends = self.cache.boundaries.get(key)
        if ends is None:
            ends = self.cache.boundaries[key] = self._boundary()
        results, constants = self.all_home(body.results), tuple(ends.constants.values())
        local_body = self.local_region(body, ends.args, ends.targets, results, constants)
        return LocalProgram(self.partition, local_body, ends.constants)

    @property
    def _is_at_home(self) -> bool:
        """True for a sparse program with arguments and results at home, ties apart."""
        modes = self.partition.modes
        moved = modes.argument_layouts or modes.result_layouts or self.partition.mesh.diagonals
        return self.active is not None and not moved

    def _program_at_home(self) -> LocalProgram:
        """Device-local program with arguments and results looked up on access.

        Programs have thousands of arguments; a search reads the moved arguments alone.
        """
        body, constants = self.module.body, self._constants()
        args = cast(Sequence[LocalValue], AtHome(self, body.args))
        leaving = {r: args[a].layout for a, r in self._moved_ties()}
        local_body = self.local_region(
            body, args, (), AtHome(self, body.results), tuple(constants.values()), leaving
        )
        return LocalProgram(self.partition, local_body, constants)

    def _moved_ties(self) -> list[tuple[int, int]]:
        """Ties whose argument and result differ in their home layouts."""
        ties, of_args, of_results = self.module.analysis(_tied_values)
        differ = np.zeros(len(ties), dtype=np.bool_)
        for rows in self.partition.axes:
            differ |= rows.tile_row[of_args] != rows.tile_row[of_results]
        return [ties[i] for i in np.flatnonzero(differ)]

    def _constants(self) -> dict[int, LocalValue]:
        """Closed-over arrays as passed to the program; small ones are replicated."""
        values, mesh = self.module.values, self.partition.mesh
        large = set(self.module.large_constants())
        return {
            i: self.local(values[i], without_diagonals(mesh, self.home(i).layout), ())
            if i in large
            else self.local(values[i], ((),) * len(values[i].type.shape), ())
            for i in self.module.constants
        }

    def _boundary(self) -> Boundary:
        mesh, body, constants = self.partition.mesh, self.module.body, self._constants()
        tied = {arg for arg, _ in self.module.ties} if mesh.skewed_state else ()
        args = tuple(
            self.home(v.id)
            if i in tied or not mesh.diagonals
            else self.local(v, without_diagonals(mesh, self.home(v.id).layout), ())
            for i, v in enumerate(body.args)
        )
        modes = self.partition.modes
        if modes.argument_layouts:
            own = dict(modes.argument_layouts)
            args = tuple(
                self.local(s.value, own[i], ()) if i in own else s for i, s in enumerate(args)
            )
        targets = list(map(self.layout, body.results))
        if mesh.diagonals:
            targets = [without_diagonals(mesh, layout) for layout in targets]
        for arg, result in self.module.ties:
            targets[result] = args[arg].layout
        for result, layout in modes.result_layouts:
            targets[result] = layout
        return Boundary(constants, args, tuple(targets))

    def local_region(
        self,
        region: Region,
        args: Sequence[LocalValue],
        targets: Sequence[Layout],
        at_home: Sequence[Source],
        constants: Sequence[LocalValue] = (),
        leaving: Mapping[int, Layout] | None = None,
    ) -> LocalRegion:
        """Lowers a region; see `HomeLayouts.local_region`."""
        builder = RegionBuilder(self)
        left: dict[tuple[int, Layout], Source] = {}
        if self.partition.mesh.diagonals or self.partition.modes.argument_layouts:
            left = {(s.value.id, s.layout): s for s in args}
        for constant in constants:
            builder.reshard(constant, self.home(constant.value.id).layout, (), None)
        places: Sequence[int] = range(len(region.ops))
        entering = self._entering_arguments(region, args, targets)
        leaving_at = self._leaving_results(region, targets)
        if self.active is not None:
            active = np.flatnonzero(self.active[self.def_use.members[region]]).tolist()
            others = {*entering, *leaving_at} - {len(region.ops)}
            places = sorted({*active, *others}) if others else active
        for builder.position in places:
            op = region.ops[builder.position]
            for arg in entering.get(builder.position, ()):
                builder.reshard(arg, self.home(arg.value.id).layout, (), op)
            if op.regions:
                builder.region_op(op)
            else:
                builder.op(op)
            for made, target in leaving_at.get(builder.position, ()):
                left[made.id, target] = builder.reshard_operand(made, target, op)
        builder.position = len(region.ops)
        for arg in entering.get(builder.position, ()):
            builder.reshard(arg, self.home(arg.value.id).layout, (), None)
        if leaving is None:
            leaving = {
                i: target
                for i, (r, target) in enumerate(zip(region.results, targets, strict=True))
                if isinstance(r, Value) and (left or layout_of(at_home[i]) != target)
            }
        if not leaving:
            return LocalRegion(region, args, builder.steps, at_home)
        results = list(at_home)
        for i, target in leaving.items():
            r = region.results[i]
            assert isinstance(r, Value)
            results[i] = left.get((r.id, target)) or builder.reshard_operand(r, target, None)
        return LocalRegion(region, args, builder.steps, tuple(results))

    def _entering_arguments(
        self, region: Region, args: Sequence[LocalValue], targets: Sequence[Layout]
    ) -> dict[int, list[LocalValue]]:
        """Arguments that enter in a layout different from the home layout.

        By position of the argument's first reader; returned arguments without a reader have
        position `len(region.ops)`.
        """
        if not self.partition.mesh.diagonals and not self.partition.modes.argument_layouts:
            return {}
        left = {s.value.id: s for s in args if s is not self.home(s.value.id)}
        found: dict[int, list[LocalValue]] = {}
        for at, op in enumerate(region.ops if left else ()):
            for _, v in op.inputs():
                if v.id in left:
                    found.setdefault(at, []).append(left.pop(v.id))
        returned = {
            r.id: left[r.id]
            for r, target in zip(region.results, targets, strict=True)
            if isinstance(r, Value) and r.id in left and left[r.id].layout != target
        }
        found[len(region.ops)] = list(returned.values())
        return found

    def _leaving_results(
        self, region: Region, targets: Sequence[Layout]
    ) -> dict[int, list[tuple[Value, Layout]]]:
        """Results with a diagonal in the home layout, with target layouts, by producer's position.

        The reshard follows the producer at once, as a delay saves nothing.
        """
        mesh, found = self.partition.mesh, dict[int, list[tuple[Value, Layout]]]()
        if not mesh.diagonals:
            return found
        skewed: dict[int, Layout] = {}
        for r, target in zip(region.results, targets, strict=True):
            if isinstance(r, Value) and without_diagonals(mesh, self.layout(r)) != self.layout(r):
                skewed[r.id] = target
        for at, op in enumerate(region.ops):
            for r in op.results:
                if r.id in skewed and skewed[r.id] != self.layout(r):
                    found.setdefault(at, []).append((r, skewed[r.id]))
        return found


_TiedValues = tuple[list[tuple[int, int]], npt.NDArray[np.int64], npt.NDArray[np.int64]]


def _tied_values(module: Module) -> _TiedValues:
    """Ties of arguments with results, literals apart, and the ids of both ends."""
    body = module.body
    pairs = [(tie, body.args[tie[0]].id, body.results[tie[1]]) for tie in module.ties]
    found = [(tie, a, r.id) for tie, a, r in pairs if isinstance(r, Value)]
    ends = np.array([(a, r) for _, a, r in found], dtype=np.int64).reshape(-1, 2)
    return [tie for tie, _, _ in found], ends[:, 0], ends[:, 1]
