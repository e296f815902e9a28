"""Moves of a module in program order, and the uses that may share a copy."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from partir_search.ir.core import Region
from partir_search.ir.rule import NONE
from partir_search.simulator.tables.crossings import border_tables, result_tables
from partir_search.simulator.tables.moves import MoveTable, MoveTables


@dataclasses.dataclass(eq=False, slots=True)
class Use:
    """A value moved for one op, or a result moved to where it rests.

    Attributes:
      region: number of the region.
      position: of the op in its region, plus 1 if a result of the op is moved; the number of ops
        for the region's results.
      backward: the op is of the backward pass, or the use is a region's result.
      argument / given: the value is an argument of the region; no op makes the value.
      made: position of the op in the region that makes the value, or NONE.
      optional: a loop may do without (`lowering/stopping.py`).
      group: number of the uses that may share one copy; see `groups`.
    """

    table: MoveTable
    region: int
    position: int
    backward: bool
    argument: bool
    given: bool
    made: int
    optional: bool = False
    group: int = NONE

    @property
    def user(self) -> int:
        """Position of the op; NONE for the region's results."""
        return NONE if self.table.op == NONE else self.position - self.table.settles


def find_uses(moves: MoveTables) -> list[Use]:
    """All moves of a module that some labels call for."""
    module, rules = moves.variables.graph.module, moves.variables.graph.rules
    def_use = moves.variables.graph.analysis.def_use
    found: list[Use] = []
    regions: list[Region] = []
    arguments_of: list[set[int]] = []
    deciding: set[int] = set()  # numbers of regions

    def add(
        tables: Iterator[MoveTable] | Sequence[MoveTable], number: int, at: int, backward: bool
    ) -> None:
        region = regions[number]
        arguments = arguments_of[number]
        members = def_use.members[region]
        for table in tables:
            if moves.any_moves(table):
                maker = def_use.makers[table.value]
                position = int(def_use.position[maker.id]) if maker else NONE
                here = maker and position < len(members) and int(members[position]) == maker.id
                own = position if here else NONE
                is_argument = table.value in arguments
                place = at + 1 if table.settles else at
                optional = number in deciding
                given = is_argument, maker is None
                found.append(Use(table, number, place, backward, *given, own, optional))

    def visit(region: Region, trips: float) -> int:
        number = len(regions)
        regions.append(region)
        arguments_of.append({v.id for v in region.args})
        for at, op in enumerate(region.ops):
            if not op.regions:
                add(moves.of_op(op, trips), number, at, op.backward)
                continue
            add(border_tables(moves, op, trips), number, at, op.backward)
            edges = rules[op.id].data_flow
            counts = edges.trip_counts
            for i, (inner, n) in enumerate(zip(op.regions, counts, strict=True)):
                if edges.examples and edges.examples.decides == i:
                    deciding.add(len(regions))
                own = visit(inner, trips * n)
                ends = result_tables(moves, op, i, inner, trips * n)
                add(ends, own, len(inner.ops), True)
        return number

    visit(module.body, 1.0)
    _set_groups(found, moves.pricer.model.machine.traits.regather_distance_ops)
    return found


def _set_groups(uses: Sequence[Use], distance: int) -> None:
    """Numbers the groups of uses within which a copy may be shared: uses of one value in one region
    and phase, each near the one before.
    """
    last: dict[tuple[int, int, bool, bool], Use] = {}
    groups = 0
    for use in sorted(uses, key=lambda u: u.position):
        if use.table.settles:
            continue
        windows = use.table.windows  # blocks fetched for windows are kept for all uses
        key = use.region, use.table.value, use.backward and not windows, windows
        before = last.get(key)
        if before is not None and (windows or use.position - before.position <= distance):
            use.group = before.group
        else:
            use.group, groups = groups, groups + 1
        last[key] = use


def by_group(uses: Sequence[Use]) -> dict[int, list[Use]]:
    """Uses by group."""
    found: dict[int, list[Use]] = {}
    for use in uses:
        if use.group != NONE:
            found.setdefault(use.group, []).append(use)
    return found
