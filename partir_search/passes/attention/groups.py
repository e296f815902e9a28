"""Ops of a region that form one attention: all that touch its scores.

A value is one of the scores' if it has a dim of keys and one of queries. Where both come from is
seen at the product that makes the scores. What reads a score belongs to the group; so does what
makes others that are combined with them (a mask from two iotas, the cotangents of the weights).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

from partir_search.ir.analysis.def_use import DefUse
from partir_search.ir.core import Op, Operand, Region, Value
from partir_search.ir.role import Role
from partir_search.ir.rule import NONE, Dims, OpRule
from partir_search.rules.registry import role_of

Dim2 = tuple[int, frozenset[int]]  # the dim of keys and the dims of queries


class NotAttention(Exception):
    """Why something that looked like it cannot be taken as attention."""


class Ops:
    """One region's ops, by what they make and use."""

    def __init__(self, region: Region, uses: DefUse, rule: Callable[[Op], OpRule]) -> None:
        self.region = region
        self.ops = region.ops
        self._rule = rule
        self.position = {id(op): at for at, op in enumerate(self.ops)}
        self.makers, self.users = uses.makers, uses.users
        self._dataless: dict[int, bool] = {}
        self.returned = {x.id for x in region.results if isinstance(x, Value)}

    def rule(self, op: Op) -> OpRule:
        """The rule of an op that has no regions."""
        return self._rule(op)

    def plain(self, op: Op) -> bool:
        """Tells whether an op's tiles are its own affair: it may run on blocks of its operands."""
        if op.regions or op.effect:
            return False
        r = self.rule(op)
        return not (r.opaque or r.major_factors or r.reads or r.indexed or r.manual or r.blocked)

    def dataless(self, op: Op) -> bool:
        """Tells whether an op rests on no data: only on positions and literals."""
        if id(op) not in self._dataless:
            makers = [self.makers[v.id] for _, v in op.inputs()]
            self._dataless[id(op)] = (
                self.plain(op)
                and self.rule(op).elementwise
                and all(m is not None and self.dataless(m) for m in makers)
            )
        return self._dataless[id(op)]


@dataclasses.dataclass(eq=False, slots=True)
class Group:
    """Ops of one attention, forward and backward.

    Attributes:
      core: ops that read scores, or the first of them.
      pulled: others that make scores.
      scores: ids of values with keys and queries, with their dims.
      made: ids of scores that depend on the product.
    """

    core: dict[int, Op]
    pulled: dict[int, Op]
    scores: dict[int, Dim2]
    made: set[int]

    def members(self, ops: Ops) -> list[Op]:
        """All ops, in program order."""
        every = {**self.core, **self.pulled}.values()
        return sorted(every, key=lambda op: ops.position[id(op)])


def find_groups(ops: Ops) -> Iterator[Group | NotAttention]:
    """The attentions of a region, and what looked like one."""
    taken: set[int] = set()
    for op in ops.ops:
        if role_of(op) is not Role.EXPONENTIAL or id(op) in taken:
            continue
        keys = _summed_dim(ops, op.results[0])
        if keys is None:
            continue
        products = list(_products(ops, op.results[0], keys))
        if not products:
            continue
        try:
            group = _grow(ops, products)
        except NotAttention as why:
            yield why
            continue
        if not taken.isdisjoint(group.core):
            continue
        taken |= set(group.core)
        yield group


def _summed_dim(ops: Ops, value: Value) -> int | None:
    """The dim along which exponentials are summed."""
    for user in ops.users[value.id]:
        if not user.regions and len(user.operands) == 1 and ops.plain(user):
            rule = ops.rule(user)
            dims = [d for d, f in enumerate(rule.operands[0]) if f >= 0 and rule.reducers[f]]
            sums = [rule.reducers[rule.operands[0][d]] == "sum" for d in dims]
            if len(dims) == 1 and all(sums) and not rule.contracts:
                return dims[0]
            if rule.elementwise and rule.results[0] == rule.operands[0]:  # a cast
                found = _summed_dim(ops, user.results[0])
                if found is not None:
                    return found
    return None


def _products(ops: Ops, value: Value, keys: int) -> Iterator[tuple[Op, Dim2]]:
    """The products that a score is made of, with its dims."""
    seen: set[int] = set()
    todo = [(value, keys)]
    while todo:
        v, dim = todo.pop()
        op = ops.makers[v.id]
        if op is None or v.id in seen or not ops.plain(op):
            continue
        seen.add(v.id)
        rule = ops.rule(op)
        made = rule.results[op.results.index(v)]
        f = made[dim]
        if f == NONE:
            continue
        if rule.contracts:
            holding = [i for i, dims in enumerate(rule.operands) if f in dims]
            if len(holding) == 1 and len(rule.operands) == 2:
                other = rule.operands[1 - holding[0]]
                own = {g for g in other if g in made and g not in rule.operands[holding[0]]}
                queries = frozenset(made.index(g) for g in own)
                if any(v.type.shape[d] > 1 for d in queries):
                    yield op, (dim, queries)
        elif rule.elementwise:
            for i, x in op.inputs():
                if f in rule.operands[i]:
                    todo.append((x, rule.operands[i].index(f)))


def _grow(ops: Ops, products: Sequence[tuple[Op, Dim2]]) -> Group:
    group = Group({}, {}, {}, set())
    todo: list[Value] = []
    for op, dims in products:
        group.core[id(op)] = op
        group.scores[op.results[0].id] = dims
        group.made.add(op.results[0].id)
        todo.append(op.results[0])
    while todo:
        v = todo.pop()
        if v.id in ops.returned:
            raise NotAttention(f"%{v.name} leaves its region with keys and queries")
        for user in ops.users[v.id]:
            if not ops.plain(user):
                raise NotAttention(f"%{v.name} is used by {user.prim} at {user.source}")
            group.core[id(user)] = user
            for i, x in user.inputs():
                if x is v:
                    _follow(ops, group, user, i, todo)
    pulls = [*group.core.values()]
    while pulls:
        op = pulls.pop()
        for x in _score_operands(ops, group, op):
            maker = ops.makers[x.id]
            if x.id in group.made or maker is None or id(maker) in group.core | group.pulled:
                continue
            rule = ops.rule(maker) if ops.plain(maker) else None
            if rule and (rule.elementwise or rule.contracts or rule.moves):
                group.pulled[id(maker)] = maker
                pulls.append(maker)
    return group


def _follow(ops: Ops, group: Group, op: Op, operand: int, todo: list[Value]) -> None:
    """Notes which results of an op are scores, as one of its operands is."""
    (keys, queries), rule = group.scores[op.operands[operand].id], ops.rule(op)  # type: ignore[union-attr]
    dims = rule.operands[operand]
    for r, made in zip(op.results, rule.results, strict=True):
        found = _same(made, dims[keys], [dims[q] for q in queries])
        if found is None:
            continue
        if r.id not in group.made:
            group.made.add(r.id)
            group.scores[r.id] = found
            todo.append(r)


def _score_operands(ops: Ops, group: Group, op: Op) -> list[Value]:
    """Operands that are scores, by those known already."""
    rule = ops.rule(op)
    known: list[tuple[Operand, Dims]] = [
        *zip(op.operands, rule.operands, strict=True),
        *zip(op.results, rule.results, strict=True),
    ]
    for x, dims in known:
        if isinstance(x, Value) and x.id in group.scores:
            keys, queries = group.scores[x.id]
            f, fs = dims[keys], [dims[q] for q in queries]
            for i, v in op.inputs():
                found = _same(rule.operands[i], f, fs)
                if found is not None:
                    group.scores.setdefault(v.id, found)
    return [v for _, v in op.inputs() if v.id in group.scores]


def _same(dims: Dims, keys: int, queries: Sequence[int]) -> Dim2 | None:
    """Positions of the factors of keys and queries in `dims`, if both are there."""
    if keys == NONE or keys not in dims:
        return None
    at = frozenset(dims.index(q) for q in queries if q != NONE and q in dims)
    return (dims.index(keys), at) if at else None
