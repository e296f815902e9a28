"""Forward and backward ops of a recognized attention, found by data dependence."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from partir_search.ir.core import Literal, Op, Value
from partir_search.passes.attention.groups import AttentionGroup, NotAttention, RegionOps


@dataclasses.dataclass(frozen=True, slots=True)
class Phase:
    """Ops to be fused into one.

    Attributes:
      ops: in program order.
      results: values read outside of the phase.
    """

    ops: tuple[Op, ...]
    results: tuple[Value, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Phases:
    """Phases of one attention.

    Attributes:
      forward: scores, softmax and the product with the values.
      product: last op of the forward pass, the product with the values.
      backward: gradients; None if the program computes none.
    """

    forward: Phase
    product: Op
    backward: Phase | None


def split_phases(ops: RegionOps, group: AttentionGroup) -> Phases:
    """Splits a group into forward pass and gradients.

    Raises:
      NotAttention: scores are read outside of the group, or by ops unable to run by blocks.
    """
    product = _last_product(ops, group)
    forward = _forward(ops, group, product)
    inside = {id(op) for op in forward}
    rest = [op for i, op in group.core.items() if i not in inside]
    backward = _backward(ops, group, inside, rest)
    known = inside | {id(op) for op in backward}
    made_by = {r.id: op for op in forward for r in op.results}
    used = {
        v.id
        for op in backward
        for _, v in op.inputs()
        if v.id in made_by and v.id not in group.scores
    }
    for v, op in made_by.items():
        if v in ops.returned or any(id(u) not in known for u in ops.users[v]):
            if v in group.derived:
                raise NotAttention(f"the scores at {op.source} are read outside of the attention")
            if v not in group.scores:
                used.add(v)
    results = tuple(r for op in forward for r in op.results if r.id in used)
    phase = Phase(tuple(forward), results)
    if not backward:
        return Phases(phase, product, None)
    gradients = []
    for op in backward:
        if id(op) in inside:
            continue
        for r in op.results:
            users = ops.users[r.id]
            if r.id in ops.returned or any(id(u) not in known for u in users):
                if r.id in group.derived:
                    raise NotAttention(
                        f"the scores at {op.source} are read outside of the attention"
                    )
                if r.id not in group.scores:
                    gradients.append(r)
    return Phases(phase, product, Phase(tuple(backward), tuple(gradients)))


def _last_product(ops: RegionOps, group: AttentionGroup) -> Op:
    """Returns the contraction over keys with the fewest contractions of the group before it."""
    found: list[tuple[int, int, Op]] = []
    for op in group.members(ops):
        rule = ops.rule(op)
        for i, v in op.inputs():
            if v.id in group.derived and rule.contracts and len(op.operands) == 2:
                f = rule.operands[i][group.scores[v.id][0]]
                other = op.operands[1 - i]
                if f >= 0 and rule.reducers[f] and operand_id(other) not in group.scores:
                    products = _products_above(ops, group, op)
                    found.append((products, ops.position[id(op)], op))
    if not found:
        raise NotAttention("no product over keys follows the softmax")
    return min(found, key=lambda f: f[:2])[2]


def operand_id(x: Value | Literal) -> int | None:
    """Returns the id of a value; None for a literal."""
    return x.id if isinstance(x, Value) else None


def _products_above(ops: RegionOps, group: AttentionGroup, op: Op) -> int:
    """Returns the number of the group's contractions on which an op depends."""
    seen: set[int] = set()
    todo = [op]
    while todo:
        for _, v in todo.pop().inputs():
            maker = ops.makers[v.id]
            if maker and id(maker) in group.core | group.producers and id(maker) not in seen:
                seen.add(id(maker))
                todo.append(maker)
    members = (o for o in group.members(ops) if id(o) in seen)
    return sum(ops.rule(o).contracts for o in members)


def _dependants(ops: RegionOps, roots: Collection[int], last: int) -> set[int]:
    """Returns the roots and all dependent ops up to position `last`, by `id`."""
    found: set[int] = set()
    for op in ops.ops[min(ops.position[i] for i in roots) : last + 1]:
        makers = (ops.makers[v.id] for _, v in op.inputs())
        if id(op) in roots or any(m is not None and id(m) in found for m in makers):
            found.add(id(op))
    return found


def _forward(ops: RegionOps, group: AttentionGroup, product: Op) -> list[Op]:
    """Returns the ops of the group needed by the product, with ops on rows in between."""
    reached = _dependants(ops, group.core, ops.position[id(product)])
    return _closure(ops, group, [product], reached, ())


def _backward(
    ops: RegionOps, group: AttentionGroup, inside: Collection[int], rest: list[Op]
) -> list[Op]:
    """Returns the remaining ops of the group, and the makers of scores read by them."""
    if not rest:
        return []
    at = {id(op): ops.position[id(op)] for op in rest}
    reached = _dependants(ops, at, max(at.values()))
    return _closure(ops, group, rest, reached, inside)


def _closure(
    ops: RegionOps,
    group: AttentionGroup,
    roots: list[Op],
    reached: Collection[int],
    forward: Collection[int],
) -> list[Op]:
    """Returns the roots and the ops they depend on, in program order.

    Members of the group and ops on rows between members are followed. Of the ops in `forward`, only
    makers of scores are repeated.
    """
    members = group.core | group.producers
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


def _check_row(ops: RegionOps, op: Op) -> None:
    """Raises NotAttention if an op between scores is a contraction or cannot run by blocks."""
    if not ops.is_blockwise(op) or ops.rule(op).contracts:
        raise NotAttention(
            f"{op.prim} at {op.source} between two scores cannot run by blocks of keys"
        )
