"""Splits an attention into its forward pass and its gradients."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from partir_search.ir.core import Literal, Op, Value
from partir_search.passes.attention.groups import Group, NotAttention, Ops


@dataclasses.dataclass(frozen=True, slots=True)
class Phase:
    """Ops that become one, in program order.

    Attributes:
      results: values that others read.
    """

    ops: tuple[Op, ...]
    results: tuple[Value, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Phases:
    """An attention.

    Attributes:
      product: the last op of the forward pass, by the values.
    """

    forward: Phase
    product: Op
    backward: Phase | None


def split(ops: Ops, group: Group) -> Phases:
    """The phases of a group. NotAttention if they are not two ops in each other's place."""
    product = _last_product(ops, group)
    forward = _forward(ops, group, product)
    inside = {id(op) for op in forward}
    rest = [op for i, op in group.core.items() if i not in inside]
    backward = _backward(ops, group, inside, rest)
    known = inside | {id(op) for op in backward}
    made = {r.id: op for op in forward for r in op.results}
    used = {
        v.id for op in backward for _, v in op.inputs() if v.id in made and v.id not in group.scores
    }
    for v, op in made.items():
        if v in ops.returned or any(id(u) not in known for u in ops.users[v]):
            if v in group.made:
                raise NotAttention(f"the scores of {op.source} are kept")
            if v not in group.scores:
                used.add(v)
    results = tuple(r for op in forward for r in op.results if r.id in used)
    phase = Phase(tuple(forward), results)
    if not backward:
        return Phases(phase, product, None)
    left = []
    for op in backward:
        if id(op) in inside:
            continue
        for r in op.results:
            users = ops.users[r.id]
            if r.id in ops.returned or any(id(u) not in known for u in users):
                if r.id in group.made:
                    raise NotAttention(f"the scores of {op.source} are kept")
                if r.id not in group.scores:
                    left.append(r)
    return Phases(phase, product, Phase(tuple(backward), tuple(left)))


def _last_product(ops: Ops, group: Group) -> Op:
    """The product over keys that rests on the fewest others."""
    found: list[tuple[int, int, Op]] = []
    for op in group.members(ops):
        rule = ops.rule(op)
        for i, v in op.inputs():
            if v.id in group.made and rule.contracts and len(op.operands) == 2:
                f = rule.operands[i][group.scores[v.id][0]]
                other = op.operands[1 - i]
                if f >= 0 and rule.reducers[f] and operand_id(other) not in group.scores:
                    products = _products_above(ops, group, op)
                    found.append((products, ops.position[id(op)], op))
    if not found:
        raise NotAttention("no product over keys follows the softmax")
    return min(found, key=lambda f: f[:2])[2]


def operand_id(x: Value | Literal) -> int | None:
    """The id of a value; None of a literal."""
    return x.id if isinstance(x, Value) else None


def _products_above(ops: Ops, group: Group, op: Op) -> int:
    """Number of the group's products that make the operands of one of its ops."""
    seen: set[int] = set()
    todo = [op]
    while todo:
        for _, v in todo.pop().inputs():
            maker = ops.makers[v.id]
            if maker and id(maker) in group.core | group.pulled and id(maker) not in seen:
                seen.add(id(maker))
                todo.append(maker)
    members = (o for o in group.members(ops) if id(o) in seen)
    return sum(ops.rule(o).contracts for o in members)


def _depends(ops: Ops, roots: Collection[int], first: int) -> set[int]:
    """Ops, by `id`, that some of the roots leads to; from a position on."""
    found: set[int] = set()
    for op in ops.ops[first:]:
        makers = (ops.makers[v.id] for _, v in op.inputs())
        if id(op) in roots or any(m is not None and id(m) in found for m in makers):
            found.add(id(op))
    return found


def _forward(ops: Ops, group: Group, product: Op) -> list[Op]:
    """All of the group that the product rests on, with what lies between."""
    reached = _depends(ops, group.core, min(ops.position[i] for i in group.core))
    return _closure(ops, group, [product], reached, ())


def _backward(ops: Ops, group: Group, inside: Collection[int], rest: list[Op]) -> list[Op]:
    """The rest of the group, with scores computed again and what lies between."""
    if not rest:
        return []
    reached = _depends(ops, {id(op) for op in rest}, min(ops.position[id(op)] for op in rest))
    return _closure(ops, group, rest, reached, inside)


def _closure(
    ops: Ops, group: Group, roots: list[Op], reached: Collection[int], forward: Collection[int]
) -> list[Op]:
    """The roots and what they rest on: members of the group, and ops on rows between them. Of ops
    in `forward` only scores are made again.
    """
    members = group.core | group.pulled
    found = {id(op): op for op in roots}
    todo = list(roots)
    while todo:
        for _, v in todo.pop().inputs():
            maker = ops.makers[v.id]
            if maker is None or id(maker) in found:
                continue
            if id(maker) in forward:
                if v.id not in group.scores:
                    continue
            elif id(maker) not in members:
                if id(maker) not in reached:
                    continue
                _check_row(ops, maker)
            found[id(maker)] = maker
            todo.append(maker)
    return sorted(found.values(), key=lambda op: ops.position[id(op)])


def _check_row(ops: Ops, op: Op) -> None:
    """Between reductions of scores and what reads them there may be ops on rows."""
    if not ops.plain(op) or ops.rule(op).contracts:
        raise NotAttention(f"{op.prim} at {op.source} stands between scores and scores")
