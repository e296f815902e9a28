"""Sums that let attention go over keys block by block: the sums of a softmax, and sums of the
backward pass that follow from the forward pass.
"""

from __future__ import annotations

import dataclasses

from partir_search.ir.composite import Body, Member, Online, Place, RowSum
from partir_search.ir.core import Literal
from partir_search.ir.role import Role
from partir_search.passes.attention.body import PhaseBody, makers
from partir_search.passes.attention.groups import NotAttention
from partir_search.rules.attention import reduced_by, summed
from partir_search.rules.elementwise import linear_but_for_rounding

REARRANGED = (Role.CAST, Role.TRANSPOSITION)
MOVES = (*REARRANGED, Role.COPY, Role.BROADCAST, Role.RESHAPE)
SCALED = (Role.MULTIPLICATION, Role.DIVISION)


@dataclasses.dataclass(frozen=True, slots=True)
class Chain:
    """From exponentials to what the values are multiplied by.

    Attributes:
      step: of each place on the way, how many factors were applied before it.
      factors: applied factors: the member that applies each, and the operand position on the way.
      divided: position of the factor that is the softmax's own division.
      values: place of the values' operand.
    """

    step: dict[int, int]
    factors: tuple[tuple[Member, int], ...]
    divided: int
    values: int


def find_online(phase_body: PhaseBody, product: Member) -> tuple[Online, Chain]:
    """The softmax of a forward pass. NotAttention if it is not one that can go by blocks."""
    body = phase_body.body
    made = makers(body)
    tops = [m for m in body.members if reduced_by(m, body.walked) == "max"]
    totals = [
        m for m in body.members if reduced_by(m, body.walked) == "sum" and not m.rule.contracts
    ]
    if len(tops) > 1 or len(totals) != 1:
        raise NotAttention(f"there are {len(tops)} maxima and {len(totals)} sums over keys")
    (total,) = totals
    weight = _origin(total.ins[0], made)
    maker = made.get(weight)
    if maker is None or maker.rule.role is not Role.EXPONENTIAL:
        raise NotAttention("what is summed over keys is no exponential")
    if tops:
        _check_top(body, tops[0], maker)
    side = next(i for i, x in enumerate(product.reads) if x in body.scores)
    rows = _rows_from(body, total.outs[0])
    chain = _chain(body, weight, product.ins[side], rows, product.ins[1 - side])
    division, at = chain.factors[chain.divided]
    for m in body.members:
        scores = any(out in body.scores for out in m.outs) or m is product
        if scores and m is not division and any(x in rows for x in m.reads):
            raise NotAttention(f"{m.op.prim} at {m.op.source} uses the sum of exponentials")
    share, numerator, by = division.outs[0], division.reads[at], division.reads[1 - at]
    top = tops[0].outs[0] if tops else None
    online = Online(top, total.outs[0], share, numerator, by, product.outs[0])
    return online, chain


def _origin(place: Place, made: dict[int, Member]) -> int:
    """Place that a place is a cast or transpose of."""
    while isinstance(place, int) and place in made and made[place].rule.role in REARRANGED:
        place = made[place].ins[0]
    if not isinstance(place, int):
        raise NotAttention("a literal is summed over keys")
    return place


def _users(body: Body, place: int) -> list[tuple[Member, int]]:
    return [(m, i) for m in body.members for i, x in enumerate(m.reads) if x == place]


def _rows_from(body: Body, place: int) -> set[int]:
    """Places made of a reduction over keys, outside of scores."""
    found = {place}
    for m in body.members:
        inner = body.walked in m.factors or any(out in body.scores for out in m.outs)
        if not inner and any(x in found for x in m.reads):
            found.update(m.outs)
    return found


def _check_top(body: Body, top: Member, exponential: Member) -> None:
    """The maximum may only be taken off what is exponentiated."""
    rows = _rows_from(body, top.outs[0])
    for m in body.members:
        if not any(out in body.scores for out in m.outs):
            continue
        for i, x in enumerate(m.reads):
            if x in rows:
                users = _users(body, m.outs[0])
                if (
                    m.rule.role is not Role.SUBTRACTION
                    or i != 1
                    or [u for u, _ in users] != [exponential]
                ):
                    raise NotAttention(f"{m.op.prim} at {m.op.source} uses the largest score")


def _chain(body: Body, first: int, last: Place, rows: set[int], values: Place) -> Chain:
    """The way from exponentials to the product, on which every op must be linear."""
    step = {first: 0}
    factors: list[tuple[Member, int]] = []
    divided: list[int] = []
    for m in body.members:
        on = [i for i, x in enumerate(m.reads) if x in step]
        if not on or not any(out in body.scores for out in m.outs):
            continue
        if len(on) > 1 or not _linear(body, m, on[0]):
            raise NotAttention(f"{m.op.prim} at {m.op.source} is not linear in the weights")
        (at,) = on
        before = step[m.reads[at]]
        if m.rule.role in MOVES:
            step[m.outs[0]] = before
            continue
        if before != len(factors):
            raise NotAttention("weights are used in two ways")
        if m.rule.role is Role.DIVISION and at == 0 and m.reads[1] in rows:
            divided.append(len(factors))
        factors.append((m, at))
        step[m.outs[0]] = before + 1
    if (
        isinstance(last, Literal)
        or last not in step
        or len(divided) != 1
        or not isinstance(values, int)
    ):
        raise NotAttention("the weights are not divided by their sum before the product")
    return Chain(step, tuple(factors), divided[0], values)


def _linear(body: Body, m: Member, at: int) -> bool:
    """True if an op is linear in an operand but for rounding (rules do not let sums through where
    rounding matters).
    """
    made = makers(body)
    groups = m.rule.linear or linear_but_for_rounding(m.op)
    return m.rule.role in MOVES or any(
        at in group and all(i == at or _zero(m.ins[i], made) for i in group) for group in groups
    )


def _zero(x: Place, made: dict[int, Member]) -> bool:
    if isinstance(x, Literal):
        return x.is_zero()
    return x in made and made[x].rule.role in MOVES and _zero(made[x].ins[0], made)


def find_sums(forward: PhaseBody, backward: PhaseBody, chain: Chain) -> tuple[RowSum, ...]:
    """The sums over keys of a backward pass that scores of it rest on, by what is known of the
    forward pass. NotAttention if one of them is of another kind.
    """
    body = backward.body
    again = _recomputed(forward, backward, chain)
    values = forward.operands[chain.values]
    found = []
    for m in body.members:
        if reduced_by(m, body.walked) != "sum" or not _returns(body, m):
            continue
        if m.rule.contracts:
            raise NotAttention(f"scores rest on {m.op.prim} at {m.op.source}")
        cotangents, source = _cotangents(backward, chain, values.id, forward)
        found.append(_row_sum(body, m, chain, again, cotangents, source, forward, backward))
    sums = {s.place for s in found}
    made, later = makers(body), summed(body) - sums
    for p in body.results:
        if body.walked not in body.labels[p] and p not in later and _rests_on(p, later, made):
            raise NotAttention(f"{made[p].op.prim} at {made[p].op.source} follows a sum over keys")
    return tuple(found)


def _rests_on(place: int, places: set[int], made: dict[int, Member]) -> bool:
    if place not in made:
        return False
    return any(x in places or _rests_on(x, places, made) for x in made[place].reads)


def _returns(body: Body, m: Member) -> bool:
    """True if scores use the result of a reduction over keys again."""
    rows = _rows_from(body, m.outs[0])
    return any(
        x in rows
        for other in body.members
        if any(out in body.scores for out in other.outs) or body.walked in other.factors
        for x in other.reads
    )


def _recomputed(forward: PhaseBody, backward: PhaseBody, chain: Chain) -> dict[int, int]:
    """Steps of the chain by places of the backward pass, which makes them again."""
    return {
        backward.place[v]: chain.step[place]
        for v, place in forward.place.items()
        if place in chain.step and v in backward.place
    }


def _cotangents(
    backward: PhaseBody, chain: Chain, values: int, forward: PhaseBody
) -> tuple[dict[int, int], int]:
    """Steps of the cotangents of what is on the chain, by place; and the result's cotangent."""
    body = backward.body
    step: dict[int, int] = {}
    source = -1
    for m in body.members:
        if m.rule.contracts and not step and m.outs[0] in body.scores:
            outer = [x for x in m.reads if 0 <= x < body.operands]
            held = [x for x in outer if backward.operands[x].id == values]
            if (
                len(outer) == 2
                and len(held) == 1
                and body.walked not in body.labels[next(x for x in outer if x not in held)]
            ):
                source = next(x for x in outer if x not in held)
                step[m.outs[0]] = len(chain.factors)
            continue
        on = [i for i, x in enumerate(m.reads) if x in step]
        if len(on) != 1 or m.outs[0] not in body.scores:
            continue
        (at,) = on
        after = step[m.reads[at]]
        if m.rule.role in MOVES:
            step[m.outs[0]] = after
        elif after and _alike(m, at, *chain.factors[after - 1], forward, backward):
            step[m.outs[0]] = after - 1
    if source < 0:
        raise NotAttention("the cotangents of the weights are not a product with the values")
    return step, source


def _alike(
    m: Member, at: int, factor: Member, position: int, forward: PhaseBody, backward: PhaseBody
) -> bool:
    """True if a cotangent is multiplied by the same factor as the weights were."""
    if m.op.prim != factor.op.prim or at != position:
        return False
    there = {place: v for v, place in forward.place.items()}
    there |= {i: v.id for i, v in enumerate(forward.operands)}
    here = {place: v for v, place in backward.place.items()}
    here |= {i: v.id for i, v in enumerate(backward.operands)}
    made = makers(backward.body)
    made_there = makers(forward.body)
    for i, (x, y) in enumerate(zip(m.ins, factor.ins, strict=True)):
        if i == at:
            continue
        if isinstance(x, Literal) or isinstance(y, Literal):
            if not (isinstance(x, Literal) and isinstance(y, Literal) and x.value == y.value):
                return False
        elif here.get(x) != there.get(y) and not (_zero(x, made) and _zero(y, made_there)):
            return False
    return True


def _row_sum(
    body: Body,
    m: Member,
    chain: Chain,
    again: dict[int, int],
    cotangents: dict[int, int],
    source: int,
    forward: PhaseBody,
    backward: PhaseBody,
) -> RowSum:
    made = makers(body)
    rows: list[tuple[Place, int]] = []
    steps: list[int] = []
    others: list[int] = []
    sign = 1
    todo: list[tuple[Place, int]] = [(m.ins[0], 1)]
    while todo:
        x, power = todo.pop()
        if isinstance(x, Literal) or (x not in body.scores):
            rows.append((x, power))
        elif x in again and power == 1:
            steps.append(again[x])
        elif x in cotangents and power == 1:
            others.append(cotangents[x])
        else:
            maker = made.get(x)
            role = maker.rule.role if maker else None
            if maker is None or role not in (*SCALED, Role.NEGATION, Role.COPY, *REARRANGED):
                raise NotAttention(f"a sum over keys at {m.op.source} is not known")
            if role is Role.NEGATION:
                sign = -sign
            todo.append((maker.ins[0], power))
            if role in SCALED:
                todo.append((maker.ins[1], power if role is Role.MULTIPLICATION else -power))
    if len(steps) != 1 or len(others) != 1:
        raise NotAttention(f"a sum over keys at {m.op.source} is not of weights and cotangents")
    low, high = sorted((steps[0], others[0]))
    between = range(low, high)
    if any(i != chain.divided for i in between):
        raise NotAttention(f"a sum over keys at {m.op.source} is of other weights")
    if chain.divided in between:  # the sum is of shares times cotangents, times the divisor
        division, at = chain.factors[chain.divided]
        by = {place: v for v, place in forward.place.items()}[division.reads[1 - at]]
        held = [i for i, v in enumerate(backward.operands) if v.id == by]
        if not held:
            raise NotAttention("the backward pass does not read what weights were divided by")
        rows.append((held[0], 1 if steps[0] < others[0] else -1))
    if any(body.walked in body.labels[x] for x, _ in rows if isinstance(x, int)):
        raise NotAttention(f"a sum over keys at {m.op.source} has a factor per key")
    return RowSum(m.outs[0], body.operands - 1, source, tuple(rows), sign)
