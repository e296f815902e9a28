"""Scopes equal up to names: layers of one kind, tiled alike."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence, Set

from partir_search.ir.analysis.def_use import def_use
from partir_search.ir.core import Literal, Op, Operand, Value
from partir_search.ir.partition import Partition
from partir_search.ir.printing.attributes import all_attributes
from partir_search.ir.printing.loops import Nest
from partir_search.ir.printing.text import literal_text, type_text


class Likeness:
    """Keys of op sequences: the texts of equal keys differ in names alone."""

    def __init__(self, partition: Partition, nests: Mapping[int, Nest], returned: Set[int]) -> None:
        self.partition, self.nests, self.returned = partition, nests, returned
        self.users = def_use(partition.module).users

    def of(self, ops: Sequence[Op]) -> Hashable:
        return _Key(self, {op.id for op in ops}).ops(ops)

    def leaves(self, value: Value, inside: Set[int]) -> bool:
        """True if a value is used by ops not `inside`."""
        return value.id in self.returned or any(u.id not in inside for u in self.users[value.id])


class _Key:
    """Key of one sequence; values are numbered by first occurrence."""

    def __init__(self, likeness: Likeness, inside: Set[int]) -> None:
        self.likeness, self.inside = likeness, inside
        self.seen: dict[int, int] = {}

    def ops(self, ops: Sequence[Op]) -> Hashable:
        return tuple(map(self.op, ops))

    def op(self, op: Op) -> Hashable:
        likeness = self.likeness
        operands = tuple(map(self.link, op.operands))
        regions = tuple(
            (tuple(map(self.link, r.args)), self.ops(r.ops), tuple(map(self.link, r.results)))
            for r in op.regions
        )
        results = tuple(
            (self.link(r), type_text(likeness.partition, r), likeness.leaves(r, self.inside))
            for r in op.results
        )
        return op.prim, all_attributes(op), likeness.nests[op.id], operands, regions, results

    def link(self, x: Operand) -> Hashable:
        if isinstance(x, Literal):
            return literal_text(x)
        return self.seen.setdefault(x.id, len(self.seen))
