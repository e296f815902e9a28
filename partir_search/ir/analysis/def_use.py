"""Def-use facts that walks over a module need repeatedly, computed once per module and rules."""

from __future__ import annotations

import dataclasses
from array import array
from collections.abc import Sequence, Set

import numpy as np
import numpy.typing as npt

from partir_search.ir.core import Literal, Module, Op, Region, Value, walk_regions
from partir_search.ir.rule import DEFERRABLE, NONE, Dims, OpRule

Ints = npt.NDArray[np.int64]
Places = npt.NDArray[np.int32]

_REDUCERS = frozenset(DEFERRABLE)


@dataclasses.dataclass(frozen=True, slots=True)
class ReductionSite:
    """An op that makes partial results or may pass them on.

    Attributes:
      single: ids of operands whose only use is this op.
      results: ids of the results.
      reduces: a loop over some factor leaves a deferrable reduction.
    """

    op: Op
    rule: OpRule
    single: tuple[int, ...]
    results: tuple[int, ...]
    reduces: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Ports:
    """Operands and results of all ops, as arrays over ports.

    Under factor f (or NONE) of its op, port p has its value tiled on dim ``dim[start[p] + f + 1]``
    and leaves ``unfinished[start[p] + f + 1]`` in it: 0 nothing, 1 a sum, 2 another reduction.
    """

    op: Places
    value: Places
    result: npt.NDArray[np.bool_]
    start: Places
    dim: npt.NDArray[np.int8]
    unfinished: npt.NDArray[np.int8]

    def only(self, which: npt.NDArray[np.bool_]) -> Ports:
        """Some of the ports."""
        return dataclasses.replace(
            self,
            op=self.op[which],
            value=self.value[which],
            result=self.result[which],
            start=self.start[which],
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Inside:
    """Values and ops of an op with regions, by id.

    Attributes:
      crossing: its operands and results, and the arguments and results of its regions.
      inner: all other values inside its regions, and inside those of ops there.
      ops: it, and all ops inside.
    """

    crossing: Ints
    inner: Ints
    ops: Ints


class DefUse:
    """Derived facts of a module.

    Attributes:
      zeros: ids of values known to be all zeros: they may join any partial sum.
      reducing: the ops that may make partial results.
      consumer: per value, id of its only user if partial results may pass through it, or NONE.
      ports: operands and results as arrays.
      uses: the operands among them.
      count: per op, how many ops it stands for.
      members: op ids of each region.
      position: per op id, its position in its region.
      always_active: per op id, whether any layout may concern it: it has regions, reads other
        stretches than tiles, or works on blocks.
      compound: ids of ops with several factors on one dim.
      is_minor: [compound, factor + 1] True for factors with major factors on the same dim.
      growth: cache of `defer_reductions`: bytes added by reducing after an op, by op, monoid and
        partial operands.
    """

    def __init__(self, module: Module, rules: Sequence[OpRule]) -> None:
        self.zeros = zero_values(module, rules)
        self.growth: dict[tuple[int, str, frozenset[int]], int | None] = {}
        uses = module.use_counts()
        self._module, self._rules = module, rules
        self._sites: dict[int, ReductionSite] = {}
        self._around: dict[int, tuple[int, ...]] = {}
        self._inside: dict[int, Inside] = {}
        self.consumer = array("i", [NONE]) * len(module.values)
        kinds: dict[int, tuple[bool, bool]] = {}  # by rule: many ops share one
        reducing: list[int] = []
        for op, rule in zip(module.ops, rules, strict=True):
            if op.regions:
                continue
            kind = kinds.get(id(rule))
            if kind is None:
                reduces = not _REDUCERS.isdisjoint(rule.reducers)
                kind = kinds[id(rule)] = reduces, bool(rule.linear or rule.monotone)
            reduces, passes = kind
            if reduces:
                reducing.append(op.id)
            if passes:
                for _, v in op.inputs():
                    if uses[v.id] == 1:
                        self.consumer[v.id] = op.id
        self.reducing = tuple(map(self.site, reducing))
        self.ports = _ports(module, rules)
        self.uses = self.ports.only(~self.ports.result)
        self.count = np.array([op.count for op in module.ops], dtype=np.int64)
        self.members: dict[Region, Ints] = {}
        self.position = np.zeros(len(module.ops), dtype=np.int64)
        for region in walk_regions(module.body):
            ids = np.array([op.id for op in region.ops], dtype=np.int64)
            self.members[region] = ids
            self.position[ids] = np.arange(len(ids))
        self.always_active = np.array(
            [bool(op.regions or _always(rules[op.id])) for op in module.ops],
            dtype=np.bool_,
        )
        compound = [op.id for op in module.ops if rules[op.id].major_factors]
        self.compound = np.array(compound, dtype=np.int64)
        width = 1 + max((len(rules[i].sizes) for i in compound), default=0)
        self.is_minor = np.zeros((len(compound), width), dtype=np.bool_)
        for k, i in enumerate(compound):
            for f, majors in enumerate(rules[i].major_factors):
                self.is_minor[k, f + 1] = bool(majors)

    def inside(self, op: Op) -> Inside:
        """Returns the values and ops of an op with regions, all nested ones included."""
        found = self._inside.get(op.id)
        if found is None:
            regions = [r for region in op.regions for r in walk_regions(region)]
            ops = [op, *(o for r in regions for o in r.ops)]
            values = {v for o in ops for v in self.around(o.id)}
            values |= {v.id for r in regions for v in r.args}
            crossing = set(self.around(op.id))
            for r in op.regions:
                crossing |= {x.id for x in (*r.args, *r.results) if isinstance(x, Value)}
            found = self._inside[op.id] = Inside(
                np.array(sorted(crossing), dtype=np.int64),
                np.array(sorted(values - crossing), dtype=np.int64),
                np.array([o.id for o in ops], dtype=np.int64),
            )
        return found

    def around(self, op_id: int) -> tuple[int, ...]:
        """Ids of an op's operand values and results."""
        found = self._around.get(op_id)
        if found is None:
            op = self._module.ops[op_id]
            ids = [v.id for _, v in op.inputs()]
            found = self._around[op_id] = (*ids, *(r.id for r in op.results))
        return found

    def site(self, op_id: int) -> ReductionSite:
        """The reduction site of an op, made on first use: most ops never need one."""
        found = self._sites.get(op_id)
        if found is None:
            op, rule = self._module.ops[op_id], self._rules[op_id]
            single = tuple([v.id for _, v in op.inputs() if self.consumer[v.id] == op_id])
            reduces = not _REDUCERS.isdisjoint(rule.reducers)
            results = tuple([r.id for r in op.results])
            found = self._sites[op_id] = ReductionSite(op, rule, single, results, reduces)
        return found


def _always(rule: OpRule) -> bool:
    """True if an op matters to a program's cost wherever its operands rest."""
    return bool(rule.manual or rule.reads or rule.blockwise)


def _ports(module: Module, rules: Sequence[OpRule]) -> Ports:
    op_of, value, start = array("i"), array("i"), array("i")  # four of each op: lists are large
    result = array("b")
    dim: list[int] = []
    unfinished: list[int] = []
    tables: dict[tuple[object, ...], int] = {}

    def table(rule: OpRule, dims: Dims, made: bool) -> int:
        key = (dims, rule.reducers, rule.major_factors, made)
        if key not in tables:
            tables[key] = len(dim)
            found = [rule.dim_of(dims, f) for f in range(len(rule.sizes))]
            left = [1 if monoid == "sum" else 2 for monoid in rule.reducers]
            dim.extend([NONE, *found])
            pairs = zip(found, left, strict=True)
            unfinished.extend([0, *(n if made and d < 0 else 0 for d, n in pairs)])
        return tables[key]

    starts: dict[int, tuple[list[int], list[int]]] = {}  # by rule: many ops share one
    for op, rule in zip(module.ops, rules, strict=True):
        if op.regions:
            continue
        known = starts.get(id(rule))
        if known is None:
            read = [table(rule, dims, False) for dims in rule.operands]
            known = starts[id(rule)] = read, [table(rule, dims, True) for dims in rule.results]
        read, made = known
        for x, at in zip(op.operands, read, strict=True):
            if isinstance(x, Value):
                value.append(x.id)
                start.append(at)
                op_of.append(op.id)
                result.append(False)
        for r, at in zip(op.results, made, strict=True):
            value.append(r.id)
            start.append(at)
            op_of.append(op.id)
            result.append(True)
    return Ports(
        np.array(op_of, dtype=np.int32),
        np.array(value, dtype=np.int32),
        np.array(result, dtype=np.bool_),
        np.array(start, dtype=np.int32),
        np.array(dim, dtype=np.int8),
        np.array(unfinished, dtype=np.int8),
    )


def zero_values(module: Module, rules: Sequence[OpRule]) -> frozenset[int]:
    """Values that are zero because everything that they are linear in is."""
    zeros: set[int] = set()
    for op, rule in zip(module.ops, rules, strict=True):
        if not op.regions and any(
            all(is_zero(op.operands[i], zeros) for i in group) for group in rule.linear
        ):
            zeros.update(r.id for r in op.results)
    return frozenset(zeros)


def is_zero(operand: object, zeros: Set[int]) -> bool:
    """Tells whether an operand is a literal zero or known to be zero."""
    if isinstance(operand, Value):
        return operand.id in zeros
    return isinstance(operand, Literal) and operand.is_zero()


def passing_group(
    op: Op, rule: OpRule, monoid: str, pending: Set[int], zeros: Set[int]
) -> tuple[int, ...]:
    """The operand positions through which a pending reduction may pass `op` now, or ().

    At least one operand of the group is pending, no other operand is; of sums, the group's others
    are zero.
    """
    held = {i for i, v in op.inputs() if v.id in pending}
    if monoid != "sum":
        groups = (g for m, g in rule.monotone if m == monoid)
        return next((g for g in groups if held and held <= set(g)), ())
    for group in rule.linear:
        if (
            held
            and held <= set(group)
            and all(i in held or is_zero(op.operands[i], zeros) for i in group)
        ):
            return group
    return ()
