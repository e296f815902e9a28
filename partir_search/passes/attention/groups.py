"""Groups of ops forming one attention: all readers and makers of its scores.

A value is a score if it has a dim of keys and at least one of queries. Both are identified at the
product making the first score. A group holds all readers of scores, and the makers of values
combined with scores (a mask from two index grids, the cotangents of the weights).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence

from partir_search.ir.analysis.def_use import DefUse
from partir_search.ir.core import Op, Operand, Region, Value
from partir_search.ir.role import Role
from partir_search.ir.rule import NONE, Dims, OpRule
from partir_search.rules.registry import role_of

ScoreDims = tuple[int, frozenset[int]]  # the dim of keys and the dims of queries


class NotAttention(Exception):
    """Reason why ops that resemble an attention cannot be fused."""


class RegionOps:
    """Ops of one region, with position, makers and users of values.

    Attributes:
      outside: by id of a region's argument equal in all iterations, the value outside.
    """

    def __init__(
        self,
        region: Region,
        uses: DefUse,
        rule: Callable[[Op], OpRule],
        outside: Mapping[int, Value],
    ) -> None:
        self.region = region
        self.ops = region.ops
        self.outside = outside
        self._rule = rule
        self.position = {id(op): at for at, op in enumerate(self.ops)}
        self.makers, self.users = uses.makers, uses.users
        self._is_dataless: dict[int, bool] = {}
        self.returned = {x.id for x in region.results if isinstance(x, Value)}

    def rule(self, op: Op) -> OpRule:
        """Returns the rule of an op without regions."""
        return self._rule(op)

    def is_blockwise(self, op: Op) -> bool:
        """True if an op may run on blocks of its operands: no region, effect, halo or lookup."""
        if op.regions or op.effect:
            return False
        r = self.rule(op)
        return not (r.opaque or r.major_factors or r.reads or r.indexed or r.manual or r.blocked)

    def source(self, value: Value) -> Value:
        """A value, or the value outside of all loops that a region's argument stands for."""
        while value.id in self.outside:
            value = self.outside[value.id]
        return value

    def is_dataless(self, op: Op) -> bool:
        """True if an op is elementwise and computes from index grids and literals alone."""
        if id(op) not in self._is_dataless:
            makers = [self.makers[self.source(v).id] for _, v in op.inputs()]
            self._is_dataless[id(op)] = (
                self.is_blockwise(op)
                and self.rule(op).elementwise
                and all(m is not None and self.is_dataless(m) for m in makers)
            )
        return self._is_dataless[id(op)]


@dataclasses.dataclass(eq=False, slots=True)
class AttentionGroup:
    """Ops of one attention, forward and backward.

    Attributes:
      core: products that make the first scores and all readers of scores, by `id` of the op.
      producers: makers of scores outside of the core (masks, cotangents of the weights), by `id`.
      scores: by value id, the dims of keys and queries of each score.
      derived: ids of the scores that depend on the first products.
    """

    core: dict[int, Op]
    producers: dict[int, Op]
    scores: dict[int, ScoreDims]
    derived: set[int]

    def members(self, ops: RegionOps) -> list[Op]:
        """Returns all ops of the group in program order."""
        every = {**self.core, **self.producers}.values()
        return sorted(every, key=lambda op: ops.position[id(op)])


def find_groups(ops: RegionOps) -> Iterator[AttentionGroup | NotAttention]:
    """Yields the attentions of a region, and a reason for each softmax that is no attention."""
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


def _summed_dim(ops: RegionOps, value: Value) -> int | None:
    """Returns the dim of the sum over exponentials or casts of these; None without one dim."""
    for user in ops.users[value.id]:
        if not user.regions and len(user.operands) == 1 and ops.is_blockwise(user):
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


def _products(ops: RegionOps, value: Value, keys: int) -> Iterator[tuple[Op, ScoreDims]]:
    """Yields the contractions with only elementwise ops up to a score, and their score dims."""
    seen: set[int] = set()
    unvisited = [(value, keys)]
    while unvisited:
        v, dim = unvisited.pop()
        op = ops.makers[v.id]
        if op is None or v.id in seen or not ops.is_blockwise(op):
            continue
        seen.add(v.id)
        rule = ops.rule(op)
        dims = rule.results[op.results.index(v)]
        key_factor = dims[dim]
        if key_factor == NONE:
            continue
        if rule.contracts:
            key_operands = [i for i, dims in enumerate(rule.operands) if key_factor in dims]
            if len(key_operands) == 1 and len(rule.operands) == 2:
                query_operand = rule.operands[1 - key_operands[0]]
                query_factors = {
                    g
                    for g in query_operand
                    if g in dims and g not in rule.operands[key_operands[0]]
                }
                queries = frozenset(dims.index(g) for g in query_factors)
                if any(v.type.shape[d] > 1 for d in queries):
                    yield op, (dim, queries)
        elif rule.elementwise:
            for i, x in op.inputs():
                if key_factor in rule.operands[i]:
                    unvisited.append((x, rule.operands[i].index(key_factor)))


def _grow(ops: RegionOps, products: Sequence[tuple[Op, ScoreDims]]) -> AttentionGroup:
    """Collects the group of some products: readers of scores first, then producers of scores."""
    group = AttentionGroup({}, {}, {}, set())
    unvisited_values: list[Value] = []
    for op, dims in products:
        group.core[id(op)] = op
        group.scores[op.results[0].id] = dims
        group.derived.add(op.results[0].id)
        unvisited_values.append(op.results[0])
    while unvisited_values:
        v = unvisited_values.pop()
        if v.id in ops.returned:
            raise NotAttention(f"%{v.name} leaves its region with keys and queries")
        for user in ops.users[v.id]:
            if not ops.is_blockwise(user):
                raise NotAttention(f"%{v.name} is used by {user.prim} at {user.source}")
            group.core[id(user)] = user
            for i, x in user.inputs():
                if x is v:
                    _add_score_results(ops, group, user, i, unvisited_values)
    unvisited_ops = [*group.core.values()]
    while unvisited_ops:
        op = unvisited_ops.pop()
        for x in _score_operands(ops, group, op):
            maker = ops.makers[x.id]
            if x.id in group.derived or maker is None or id(maker) in group.core | group.producers:
                continue
            rule = ops.rule(maker) if ops.is_blockwise(maker) else None
            if rule and (rule.elementwise or rule.contracts or rule.moves):
                group.producers[id(maker)] = maker
                unvisited_ops.append(maker)
    return group


def _add_score_results(
    ops: RegionOps, group: AttentionGroup, op: Op, operand: int, unvisited_values: list[Value]
) -> None:
    """Records the results of an op as scores if they keep the key and query dims of one operand."""
    (keys, queries), rule = group.scores[op.operands[operand].id], ops.rule(op)  # type: ignore[union-attr]
    dims = rule.operands[operand]
    for r, made in zip(op.results, rule.results, strict=True):
        found = _score_dims(made, dims[keys], [dims[q] for q in queries])
        if found is None:
            continue
        if r.id not in group.derived:
            group.derived.add(r.id)
            group.scores[r.id] = found
            unvisited_values.append(r)


def _score_operands(ops: RegionOps, group: AttentionGroup, op: Op) -> list[Value]:
    """Returns the operands of an op known to be scores, after recording new ones."""
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
                found = _score_dims(rule.operands[i], f, fs)
                if found is not None:
                    group.scores.setdefault(v.id, found)
    return [v for _, v in op.inputs() if v.id in group.scores]


def _score_dims(dims: Dims, keys: int, queries: Sequence[int]) -> ScoreDims | None:
    """Positions in `dims` of the factors of keys and of queries; None unless both occur."""
    if keys == NONE or keys not in dims:
        return None
    at = frozenset(dims.index(q) for q in queries if q != NONE and q in dims)
    return (dims.index(keys), at) if at else None
