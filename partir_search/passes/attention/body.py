"""Body of a fused attention: the ops of one phase, with a label for each of their dims."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Sequence

from partir_search.ir.analysis.union_find import UnionFind
from partir_search.ir.composite import Body, Labels, Member, Place
from partir_search.ir.core import Literal, Op, Operand, Value
from partir_search.ir.rule import NONE, Dims, OpRule
from partir_search.passes.attention.groups import AttentionGroup, NotAttention, RegionOps
from partir_search.passes.attention.phases import Phase


@dataclasses.dataclass(frozen=True, slots=True)
class PhaseBody:
    """Body of a phase, with the values of the module read and made by it.

    Attributes:
      body: the body; `build_body` leaves sums, mask and online softmax empty.
      operands: values read by the body, in order of its operands. A value read with different
        labels occurs once for each.
      place_of: by id of a value made by a member, its place in the body.
    """

    body: Body
    operands: tuple[Value, ...]
    place_of: dict[int, int]


@dataclasses.dataclass(frozen=True, slots=True)
class _Use:
    """One op of a phase, as a member of a body under construction.

    Attributes:
      ins: operands; (position of a use, position of a result) for an operand made by a use.
      first: number of the op's first factor. Factors of all uses are numbered consecutively.
    """

    op: Op
    rule: OpRule
    ins: tuple[Operand | tuple[int, int], ...]
    first: int

    def operand_dims(self) -> list[tuple[Operand | tuple[int, int], Dims]]:
        """Returns each operand with the factors on its dims."""
        return list(zip(self.ins, self.rule.operands, strict=True))


def build_body(
    ops: RegionOps,
    group: AttentionGroup,
    phase: Phase,
    key: Callable[[Op], Hashable],
    forward: tuple[PhaseBody, Value] | None = None,
) -> PhaseBody:
    """Builds the body of one phase; sums, causal mask and online softmax are left empty.

    Args:
      key: function from an op to a hashable, equal for ops that compute the same.
      forward: for a backward phase, the body of the forward phase and its result, which becomes the
        last operand.

    Raises:
      NotAttention: dims with one label differ in size, or keys and queries share a factor.
    """
    uses, made_by = _uses(ops, phase)
    scores = {v: made_by[v] for v in group.scores if v in made_by}
    unified = _unify_factors(uses)
    keys, queries = _key_and_query_factors(group, scores, unified, uses)
    _unify_operands(uses, unified, keys, queries)
    keys, queries = _key_and_query_factors(group, scores, unified, uses)
    label_of: dict[int, int] = {}
    sizes: list[int] = []
    factors: list[Labels] = []
    for use in uses:
        use_labels: list[int] = []
        for f, n in enumerate(use.rule.sizes):
            label = label_of.setdefault(unified.find(use.first + f), len(label_of))
            if label == len(sizes):
                sizes.append(n)
            if sizes[label] != n:
                raise NotAttention(f"a dim has two sizes in {use.op.prim} at {use.op.source}")
            use_labels.append(label)
        factors.append(tuple(use_labels))
    operands: list[Value] = []
    labels: list[Labels] = []
    operand_at: dict[tuple[int, Labels], int] = {}
    for use, use_factors in zip(uses, factors, strict=True):
        for x, dims in use.operand_dims():
            if isinstance(x, Value):
                entry = (x.id, _labels(dims, use_factors))
                if entry not in operand_at:
                    operand_at[entry] = len(operands)
                    operands.append(x)
                    labels.append(entry[1])
    if forward is not None:
        operands.append(forward[1])
        labels.append(())
    count = len(operands)
    place_at: dict[tuple[int, int], int] = {}
    members: list[Member] = []
    for use_at, (use, use_factors) in enumerate(zip(uses, factors, strict=True)):
        reads: list[Place] = []
        for x, dims in use.operand_dims():
            if isinstance(x, Literal):
                reads.append(x)
            else:
                inner = isinstance(x, tuple)
                reads.append(place_at[x] if inner else operand_at[x.id, _labels(dims, use_factors)])  # type: ignore
        for result_at, dims in enumerate(use.rule.results):
            place_at[use_at, result_at] = len(labels)
            labels.append(_labels(dims, use_factors))
        outs = tuple(place_at[use_at, result_at] for result_at in range(len(use.op.results)))
        members.append(Member(use.op, use.rule, tuple(reads), outs, use_factors))
    place_of = {v: place_at[at] for v, at in made_by.items()}
    if forward is not None:
        labels[count - 1] = _result_labels(forward, operands, labels, place_of)
    signature = (
        tuple((key(m.op), _literal_free(m.ins), m.outs) for m in members),
        tuple(str(v.type) for v in operands),
    )
    body = Body(
        members=tuple(members),
        labels=tuple(labels),
        sizes=tuple(sizes),
        operands=count,
        results=tuple(place_of[v.id] for v in phase.results),
        key_label=label_of[keys],
        queries=frozenset(label_of[q] for q in queries),
        scores=frozenset(place_of[v] for v in scores),
        online=None,
        sums=(),
        causal=False,
        signature=signature,
    )
    return PhaseBody(body, tuple(operands), place_of)


def _uses(ops: RegionOps, phase: Phase) -> tuple[list[_Use], dict[int, tuple[int, int]]]:
    """Returns the ops of a phase, and the (use, result) of each value by value id.

    Values computed from positions and literals alone (index grids of a mask), also outside of a
    loop, are recomputed for each reader, as queries' and keys' positions may be one value in the
    program.
    """
    uses: list[_Use] = []
    made: dict[int, tuple[int, int]] = {}

    def read(x: Operand) -> Operand | tuple[int, int]:
        if isinstance(x, Literal) or x.id in made:
            return made[x.id] if isinstance(x, Value) else x
        source = ops.source(x)
        maker = ops.makers[source.id]
        if maker is None or not ops.is_dataless(maker):
            return x
        ins = tuple(map(read, maker.operands))
        uses.append(_Use(maker, ops.rule(maker), ins, _count_factors(uses)))
        return len(uses) - 1, maker.results.index(source)

    for op in phase.ops:
        ins = tuple(map(read, op.operands))
        made |= {v.id: (len(uses), r) for r, v in enumerate(op.results)}
        uses.append(_Use(op, ops.rule(op), ins, _count_factors(uses)))
    return uses, made


def _count_factors(uses: Sequence[_Use]) -> int:
    """Returns the number of factors of all uses."""
    return uses[-1].first + len(uses[-1].rule.sizes) if uses else 0


def _unify_factors(uses: Sequence[_Use]) -> UnionFind:
    """Merges the factors of a dim in the op making a value and in the ops reading the value."""
    unified = UnionFind(_count_factors(uses))
    for use in uses:
        for x, dims in use.operand_dims():
            if isinstance(x, tuple):
                maker, result = x
                for f, g in zip(dims, uses[maker].rule.results[result], strict=True):
                    if f >= 0 and g >= 0:
                        unified.merge(use.first + f, uses[maker].first + g)
    return unified


def _key_and_query_factors(
    group: AttentionGroup,
    scores: dict[int, tuple[int, int]],
    unified: UnionFind,
    uses: Sequence[_Use],
) -> tuple[int, set[int]]:
    """Returns the merged factor of the keys and the merged factors of the queries."""
    keys: set[int] = set()
    queries: set[int] = set()
    for value_id, (use_at, result_at) in scores.items():
        if value_id in group.derived:
            dims, first = uses[use_at].rule.results[result_at], uses[use_at].first
            key_dim, query_dims = group.scores[value_id]
            keys.add(unified.find(first + dims[key_dim]))
            queries |= {unified.find(first + dims[q]) for q in query_dims if dims[q] >= 0}
    if len(keys) != 1 or keys & queries:
        raise NotAttention("keys and queries are the same dim")
    return keys.pop(), queries


def _unify_operands(uses: Sequence[_Use], unified: UnionFind, keys: int, queries: set[int]) -> None:
    """Merges the dims of a value's reads, if keys and queries lie on the same dims."""
    first: dict[object, list[int | None]] = {}
    for use in uses:
        for x, dims in use.operand_dims():
            if not isinstance(x, Value):
                continue
            roots = [unified.find(use.first + f) if f >= 0 else None for f in dims]
            role = tuple("k" if root == keys else "q" if root in queries else "" for root in roots)
            unlabelled = tuple(root is None for root in roots)
            earlier = first.setdefault((x.id, role, unlabelled), roots)
            for root, earlier_root in zip(roots, earlier, strict=True):
                if root is not None and earlier_root is not None:
                    unified.merge(root, earlier_root)


def _result_labels(
    forward: tuple[PhaseBody, Value],
    operands: list[Value],
    labels: list[Labels],
    place_of: dict[int, int],
) -> Labels:
    """Returns the forward result's labels in the backward body, matched by common values."""
    forward_body, result = forward
    backward_labels = {v: labels[at] for v, at in place_of.items()}
    backward_labels |= {v.id: at for v, at in zip(operands[:-1], labels, strict=False)}
    forward_labels = {v: forward_body.body.labels[at] for v, at in forward_body.place_of.items()}
    forward_labels |= {
        v.id: at for v, at in zip(forward_body.operands, forward_body.body.labels, strict=False)
    }
    label_here = {
        a: b
        for v in backward_labels.keys() & forward_labels.keys()
        for a, b in zip(forward_labels[v], backward_labels[v], strict=True)
    }
    result_labels = forward_body.body.labels[forward_body.place_of[result.id]]
    if any(a >= 0 and label_here.get(a, NONE) < 0 for a in result_labels):
        raise NotAttention("the backward pass does not know all dims of the result")
    return tuple(NONE if a < 0 else label_here[a] for a in result_labels)


def _labels(dims: tuple[int, ...], factors: Labels) -> Labels:
    """Returns the label of each dim, given the factor on each dim and the label of each factor."""
    return tuple(NONE if f == NONE else factors[f] for f in dims)


def _literal_free(ins: tuple[Place, ...]) -> tuple[Hashable, ...]:
    """Inputs of a member as hashables: places, and (type, value) of literals."""
    return tuple((str(x.type), str(x.value)) if isinstance(x, Literal) else x for x in ins)


def makers(body: Body) -> dict[int, Member]:
    """Returns the member making each place."""
    return {out: m for m in body.members for out in m.outs}
