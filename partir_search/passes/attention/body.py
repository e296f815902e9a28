"""Writes a phase of attention as the body of one op: places and labels."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Sequence

from partir_search.ir.analysis.union_find import UnionFind
from partir_search.ir.composite import Body, Labels, Member, Online, Place, RowSum
from partir_search.ir.core import Literal, Op, Operand, Value
from partir_search.ir.rule import NONE, Dims, OpRule
from partir_search.passes.attention.groups import Group, NotAttention, Ops
from partir_search.passes.attention.phases import Phase


@dataclasses.dataclass(frozen=True, slots=True)
class PhaseBody:
    """Body of a phase, with the values that it reads and makes.

    Attributes:
      body: the body; sums and mask are unknown before `with_sums_and_mask`.
      operands: values read, one per operand of the body; a value occurs once per labelling.
      place: place of each value that a member makes, by value id.
    """

    body: Body
    operands: tuple[Value, ...]
    place: dict[int, int]


@dataclasses.dataclass(frozen=True, slots=True)
class _Use:
    """One op of a phase.

    Attributes:
      ins: operands; positions of a use and of its result where a use makes the operand.
      first: id of its first factor: factors of all uses are numbered in order.
    """

    op: Op
    rule: OpRule
    ins: tuple[Operand | tuple[int, int], ...]
    first: int

    def ports(self) -> list[tuple[Operand | tuple[int, int], Dims]]:
        """Operands with their factors."""
        return list(zip(self.ins, self.rule.operands, strict=True))


def build_body(
    ops: Ops,
    group: Group,
    phase: Phase,
    key: Callable[[Op], Hashable],
    forward: tuple[PhaseBody, Value] | None = None,
) -> PhaseBody:
    """The body of a phase, with sums and mask unknown.

    Args:
      key: of an op, equal for ops that do the same.
      forward: of a backward phase, the forward one, whose result is its last operand.
    """
    uses, made = _uses(ops, phase)
    scores = {v: made[v] for v in group.scores if v in made}
    same = _joined(uses)
    keys, queries = _key_and_query_factors(group, scores, same, uses)
    _join_operands(uses, same, keys, queries)
    keys, queries = _key_and_query_factors(group, scores, same, uses)
    number: dict[int, int] = {}
    sizes: list[int] = []
    factors: list[Labels] = []
    for use in uses:
        own: list[int] = []
        for f, n in enumerate(use.rule.sizes):
            label = number.setdefault(same.find(use.first + f), len(number))
            if label == len(sizes):
                sizes.append(n)
            if sizes[label] != n:
                raise NotAttention(f"a dim has two sizes in {use.op.prim} at {use.op.source}")
            own.append(label)
        factors.append(tuple(own))
    operands: list[Value] = []
    labels: list[Labels] = []
    known: dict[tuple[int, Labels], int] = {}
    for use, fs in zip(uses, factors, strict=True):
        for x, dims in use.ports():
            if isinstance(x, Value):
                entry = (x.id, _labels(dims, fs))
                if entry not in known:
                    known[entry] = len(operands)
                    operands.append(x)
                    labels.append(entry[1])
    if forward is not None:
        operands.append(forward[1])
        labels.append(())
    count = len(operands)
    places: dict[tuple[int, int], int] = {}
    members: list[Member] = []
    for u, (use, fs) in enumerate(zip(uses, factors, strict=True)):
        ins: list[Place] = []
        for x, dims in use.ports():
            if isinstance(x, Literal):
                ins.append(x)
            else:
                inner = isinstance(x, tuple)
                ins.append(places[x] if inner else known[x.id, _labels(dims, fs)])  # type: ignore
        for r, dims in enumerate(use.rule.results):
            places[u, r] = len(labels)
            labels.append(_labels(dims, fs))
        outs = tuple(places[u, r] for r in range(len(use.op.results)))
        members.append(Member(use.op, use.rule, tuple(ins), outs, fs))
    place = {v: places[at] for v, at in made.items()}
    if forward is not None:
        labels[count - 1] = _result_labels(forward, operands, labels, place)
    signature = (
        tuple((key(m.op), _signs(m.ins), m.outs) for m in members),
        tuple(str(v.type) for v in operands),
    )
    body = Body(
        members=tuple(members),
        labels=tuple(labels),
        sizes=tuple(sizes),
        operands=count,
        results=tuple(place[v.id] for v in phase.results),
        walked=number[keys],
        queries=frozenset(number[q] for q in queries),
        scores=frozenset(place[v] for v in scores),
        online=None,
        sums=(),
        causal=False,
        signature=signature,
    )
    return PhaseBody(body, tuple(operands), place)


def _uses(ops: Ops, phase: Phase) -> tuple[list[_Use], dict[int, tuple[int, int]]]:
    """Ops of a phase, and which of them makes each value. What rests on no data (positions, of
    which masks are made) is made in place, once for each use: queries' and keys' may be one value.
    """
    uses: list[_Use] = []
    made: dict[int, tuple[int, int]] = {}

    def read(x: Operand) -> Operand | tuple[int, int]:
        if isinstance(x, Literal) or x.id in made:
            return made[x.id] if isinstance(x, Value) else x
        maker = ops.makers[x.id]
        if maker is None or not ops.dataless(maker):
            return x
        ins = tuple(map(read, maker.operands))
        uses.append(_Use(maker, ops.rule(maker), ins, _factors(uses)))
        return len(uses) - 1, maker.results.index(x)

    for op in phase.ops:
        ins = tuple(map(read, op.operands))
        made |= {v.id: (len(uses), r) for r, v in enumerate(op.results)}
        uses.append(_Use(op, ops.rule(op), ins, _factors(uses)))
    return uses, made


def _factors(uses: Sequence[_Use]) -> int:
    """Number of factors of all uses."""
    return uses[-1].first + len(uses[-1].rule.sizes) if uses else 0


def _joined(uses: Sequence[_Use]) -> UnionFind:
    """Factors that are one: of a dim's maker and its users."""
    same = UnionFind(_factors(uses))
    for use in uses:
        for x, dims in use.ports():
            if isinstance(x, tuple):
                maker, result = x
                for f, g in zip(dims, uses[maker].rule.results[result], strict=True):
                    if f >= 0 and g >= 0:
                        same.merge(use.first + f, uses[maker].first + g)
    return same


def _key_and_query_factors(
    group: Group, scores: dict[int, tuple[int, int]], same: UnionFind, uses: Sequence[_Use]
) -> tuple[int, set[int]]:
    """The keys' and the queries' factors."""
    keys: set[int] = set()
    queries: set[int] = set()
    for v, (u, r) in scores.items():
        if v in group.made:
            dims, first = uses[u].rule.results[r], uses[u].first
            at, others = group.scores[v]
            keys.add(same.find(first + dims[at]))
            queries |= {same.find(first + dims[q]) for q in others if dims[q] >= 0}
    if len(keys) != 1 or keys & queries:
        raise NotAttention("keys and queries are the same dim")
    return keys.pop(), queries


def _join_operands(uses: Sequence[_Use], same: UnionFind, keys: int, queries: set[int]) -> None:
    """Takes a value that is read more than once for one operand, if its keys and queries agree."""
    first: dict[object, list[int | None]] = {}
    for use in uses:
        for x, dims in use.ports():
            if not isinstance(x, Value):
                continue
            here = [same.find(use.first + f) if f >= 0 else None for f in dims]
            role = tuple("k" if f == keys else "q" if f in queries else "" for f in here)
            whole = tuple(f is None for f in here)
            other = first.setdefault((x.id, role, whole), here)
            for f, g in zip(here, other, strict=True):
                if f is not None and g is not None:
                    same.merge(f, g)


def _result_labels(
    forward: tuple[PhaseBody, Value],
    operands: list[Value],
    labels: list[Labels],
    place: dict[int, int],
) -> Labels:
    """Labels here of the forward phase's result, by the values that both phases have."""
    before, result = forward
    here = {v: labels[at] for v, at in place.items()}
    here |= {v.id: at for v, at in zip(operands[:-1], labels, strict=False)}
    there = {v: before.body.labels[at] for v, at in before.place.items()}
    there |= {v.id: at for v, at in zip(before.operands, before.body.labels, strict=False)}
    same = {
        a: b for v in here.keys() & there.keys() for a, b in zip(there[v], here[v], strict=True)
    }
    made = before.body.labels[before.place[result.id]]
    if any(a >= 0 and same.get(a, NONE) < 0 for a in made):
        raise NotAttention("the backward pass does not know all dims of the result")
    return tuple(NONE if a < 0 else same[a] for a in made)


def with_sums_and_mask(
    body: Body, online: Online | None, sums: tuple[RowSum, ...], causal: bool
) -> Body:
    """The body with its sums and its mask.

    Args:
      online: the softmax of a forward phase.
      sums: sums over keys of a backward phase that follow from the forward phase.
      causal: True if later positions are masked.
    """
    return dataclasses.replace(body, online=online, sums=sums, causal=causal)


def _labels(dims: tuple[int, ...], factors: Labels) -> Labels:
    return tuple(NONE if f == NONE else factors[f] for f in dims)


def _signs(ins: tuple[Place, ...]) -> tuple[Hashable, ...]:
    """Places, and literals by what they are."""
    return tuple((str(x.type), str(x.value)) if isinstance(x, Literal) else x for x in ins)


def makers(body: Body) -> dict[int, Member]:
    """The member that makes each place."""
    return {out: m for m in body.members for out in m.outs}
