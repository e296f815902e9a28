"""Reductions over keys that can be computed block by block.

Forward: the maximum and the sum of an online softmax. Backward: row sums that follow from the
result of the forward pass (`ir.composite.RowSum`).
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
class WeightChain:
    """Linear ops from the exponentials to the weights multiplied with the values.

    Attributes:
      steps: by place on the chain, the number of factors applied before it.
      factors: per applied factor, the member that applies it and the operand position of the chain.
      divided: position in `factors` of the softmax's division by the sum of exponentials.
      values: place of the values, the second operand of the product.
    """

    steps: dict[int, int]
    factors: tuple[tuple[Member, int], ...]
    divided: int
    values: int


def find_online(forward: PhaseBody, product: Member) -> tuple[Online, WeightChain]:
    """Returns the online softmax of a forward body, and the chain of its weights.

    Args:
      product: the member that multiplies weights and values.

    Raises:
      NotAttention: the softmax cannot be computed by blocks of keys.
    """
    body = forward.body
    made = makers(body)
    maxima = [m for m in body.members if reduced_by(m, body.key_label) == "max"]
    totals = [
        m for m in body.members if reduced_by(m, body.key_label) == "sum" and not m.rule.contracts
    ]
    if len(maxima) > 1 or len(totals) != 1:
        raise NotAttention(f"there are {len(maxima)} maxima and {len(totals)} sums over keys")
    (total,) = totals
    weight = _origin(total.ins[0], made)
    maker = made.get(weight)
    if maker is None or maker.rule.role is not Role.EXPONENTIAL:
        raise NotAttention("the sum over keys is not of exponentials")
    if maxima:
        _check_maximum(body, maxima[0], maker)
    side = next(i for i, x in enumerate(product.reads) if x in body.scores)
    rows = _rows_from(body, total.outs[0])
    chain = _chain(body, weight, product.ins[side], rows, product.ins[1 - side])
    division, at = chain.factors[chain.divided]
    for m in body.members:
        scores = any(out in body.scores for out in m.outs) or m is product
        if scores and m is not division and any(x in rows for x in m.reads):
            raise NotAttention(f"{m.op.prim} at {m.op.source} uses the sum of exponentials")
    share, numerator, divisor = division.outs[0], division.reads[at], division.reads[1 - at]
    top = maxima[0].outs[0] if maxima else None
    online = Online(top, total.outs[0], share, numerator, divisor, product.outs[0])
    return online, chain


def _origin(place: Place, made: dict[int, Member]) -> int:
    """Returns the place of which a place is a cast or transpose."""
    while isinstance(place, int) and place in made and made[place].rule.role in REARRANGED:
        place = made[place].ins[0]
    if not isinstance(place, int):
        raise NotAttention("a literal is summed over keys")
    return place


def _users(body: Body, place: int) -> list[tuple[Member, int]]:
    """Returns the members that read a place, with the operand position."""
    return [(m, i) for m in body.members for i, x in enumerate(m.reads) if x == place]


def _rows_from(body: Body, place: int) -> set[int]:
    """Returns the places computed from a reduction over keys, outside of scores."""
    found = {place}
    for m in body.members:
        inner = body.key_label in m.factors or any(out in body.scores for out in m.outs)
        if not inner and any(x in found for x in m.reads):
            found.update(m.outs)
    return found


def _check_maximum(body: Body, top: Member, exponential: Member) -> None:
    """Raises NotAttention if the maximum is used but to be subtracted before the exponential."""
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


def _chain(body: Body, first: int, last: Place, rows: set[int], values: Place) -> WeightChain:
    """Returns the chain from exponentials to product.

    Raises:
      NotAttention: an op on the chain is not linear, or the weights are used in two ways.
    """
    steps = {first: 0}
    factors: list[tuple[Member, int]] = []
    divided: list[int] = []
    for m in body.members:
        on_chain = [i for i, x in enumerate(m.reads) if x in steps]
        if not on_chain or not any(out in body.scores for out in m.outs):
            continue
        if len(on_chain) > 1 or not _linear(body, m, on_chain[0]):
            raise NotAttention(f"{m.op.prim} at {m.op.source} is not linear in the weights")
        (chain_operand,) = on_chain
        factors_before = steps[m.reads[chain_operand]]
        if m.rule.role in MOVES:
            steps[m.outs[0]] = factors_before
            continue
        if factors_before != len(factors):
            raise NotAttention("weights are used in two ways")
        if m.rule.role is Role.DIVISION and chain_operand == 0 and m.reads[1] in rows:
            divided.append(len(factors))
        factors.append((m, chain_operand))
        steps[m.outs[0]] = factors_before + 1
    if (
        isinstance(last, Literal)
        or last not in steps
        or len(divided) != 1
        or not isinstance(values, int)
    ):
        raise NotAttention("the weights are not divided by their sum before the product")
    return WeightChain(steps, tuple(factors), divided[0], values)


def _linear(body: Body, m: Member, at: int) -> bool:
    """True if an op is linear in an operand, rounding aside.

    Rules are stricter: no reduction is deferred past a rounding op.
    """
    made = makers(body)
    groups = m.rule.linear or linear_but_for_rounding(m.op)
    return m.rule.role in MOVES or any(
        at in group and all(i == at or _is_zero(m.ins[i], made) for i in group) for group in groups
    )


def _is_zero(x: Place, made: dict[int, Member]) -> bool:
    """True if a place is a literal zero, moved or cast."""
    if isinstance(x, Literal):
        return x.is_zero()
    return x in made and made[x].rule.role in MOVES and _is_zero(made[x].ins[0], made)


def find_sums(forward: PhaseBody, backward: PhaseBody, chain: WeightChain) -> tuple[RowSum, ...]:
    """Returns the sums over keys on which scores of the backward pass depend.

    Args:
      chain: weights of the forward body.

    Raises:
      NotAttention: a sum over keys does not follow from the result of the forward pass.
    """
    body = backward.body
    recomputed = _recomputed_steps(forward, backward, chain)
    values = forward.operands[chain.values]
    found = []
    for m in body.members:
        if reduced_by(m, body.key_label) != "sum" or not _feeds_scores(body, m):
            continue
        if m.rule.contracts:
            raise NotAttention(f"scores rest on {m.op.prim} at {m.op.source}")
        cotangents, result_cotangent = _cotangents(backward, chain, values.id, forward)
        found.append(
            _row_sum(body, m, chain, recomputed, cotangents, result_cotangent, forward, backward)
        )
    sums = {s.place for s in found}
    made, later = makers(body), summed(body) - sums
    for p in body.results:
        if body.key_label not in body.labels[p] and p not in later and _rests_on(p, later, made):
            raise NotAttention(f"{made[p].op.prim} at {made[p].op.source} follows a sum over keys")
    return tuple(found)


def _rests_on(place: int, places: set[int], made: dict[int, Member]) -> bool:
    """True if a place is computed from one of `places`."""
    if place not in made:
        return False
    return any(x in places or _rests_on(x, places, made) for x in made[place].reads)


def _feeds_scores(body: Body, m: Member) -> bool:
    """True if scores, or members over keys, read the result of a reduction over keys."""
    rows = _rows_from(body, m.outs[0])
    return any(
        x in rows
        for other in body.members
        if any(out in body.scores for out in other.outs) or body.key_label in other.factors
        for x in other.reads
    )


def _recomputed_steps(
    forward: PhaseBody, backward: PhaseBody, chain: WeightChain
) -> dict[int, int]:
    """Returns the chain's steps by place of the backward body, which recomputes the chain."""
    return {
        backward.place_of[v]: chain.steps[place]
        for v, place in forward.place_of.items()
        if place in chain.steps and v in backward.place_of
    }


def _cotangents(
    backward: PhaseBody, chain: WeightChain, values: int, forward: PhaseBody
) -> tuple[dict[int, int], int]:
    """Returns the steps of the chain's cotangents by place, and the place of the result's
    cotangent.
    """
    body = backward.body
    steps: dict[int, int] = {}
    result_cotangent = -1
    for m in body.members:
        if m.rule.contracts and not steps and m.outs[0] in body.scores:
            read_operands = [x for x in m.reads if 0 <= x < body.operands]
            read_values = [x for x in read_operands if backward.operands[x].id == values]
            if (
                len(read_operands) == 2
                and len(read_values) == 1
                and body.key_label
                not in body.labels[next(x for x in read_operands if x not in read_values)]
            ):
                result_cotangent = next(x for x in read_operands if x not in read_values)
                steps[m.outs[0]] = len(chain.factors)
            continue
        on = [i for i, x in enumerate(m.reads) if x in steps]
        if len(on) != 1 or m.outs[0] not in body.scores:
            continue
        (at,) = on
        after = steps[m.reads[at]]
        if m.rule.role in MOVES:
            steps[m.outs[0]] = after
        elif after and _same_factor(m, at, *chain.factors[after - 1], forward, backward):
            steps[m.outs[0]] = after - 1
    if result_cotangent < 0:
        raise NotAttention("the cotangents of the weights are not a product with the values")
    return steps, result_cotangent


def _same_factor(
    m: Member, at: int, factor: Member, position: int, forward: PhaseBody, backward: PhaseBody
) -> bool:
    """True if a member multiplies a cotangent by the same factor as the weights."""
    if m.op.prim != factor.op.prim or at != position:
        return False
    forward_ids = {place: v for v, place in forward.place_of.items()}
    forward_ids |= {i: v.id for i, v in enumerate(forward.operands)}
    backward_ids = {place: v for v, place in backward.place_of.items()}
    backward_ids |= {i: v.id for i, v in enumerate(backward.operands)}
    made = makers(backward.body)
    made_forward = makers(forward.body)
    for i, (x, y) in enumerate(zip(m.ins, factor.ins, strict=True)):
        if i == at:
            continue
        if isinstance(x, Literal) or isinstance(y, Literal):
            if not (isinstance(x, Literal) and isinstance(y, Literal) and x.value == y.value):
                return False
        elif backward_ids.get(x) != forward_ids.get(y) and not (
            _is_zero(x, made) and _is_zero(y, made_forward)
        ):
            return False
    return True


def _row_sum(
    body: Body,
    m: Member,
    chain: WeightChain,
    recomputed: dict[int, int],
    cotangents: dict[int, int],
    result_cotangent: int,
    forward: PhaseBody,
    backward: PhaseBody,
) -> RowSum:
    """Returns the sum over keys made by a member, in terms of the forward result and its cotangent.

    Raises:
      NotAttention: the sum is no product of weights, cotangents and factors per row.
    """
    made = makers(body)
    rows: list[tuple[Place, int]] = []
    weight_steps: list[int] = []
    cotangent_steps: list[int] = []
    sign = 1
    unvisited: list[tuple[Place, int]] = [(m.ins[0], 1)]
    while unvisited:
        x, power = unvisited.pop()
        if isinstance(x, Literal) or (x not in body.scores):
            rows.append((x, power))
        elif x in recomputed and power == 1:
            weight_steps.append(recomputed[x])
        elif x in cotangents and power == 1:
            cotangent_steps.append(cotangents[x])
        else:
            maker = made.get(x)
            role = maker.rule.role if maker else None
            if maker is None or role not in (*SCALED, Role.NEGATION, Role.COPY, *REARRANGED):
                raise NotAttention(
                    f"a sum over keys at {m.op.source} does not follow from the forward pass"
                )
            if role is Role.NEGATION:
                sign = -sign
            unvisited.append((maker.ins[0], power))
            if role in SCALED:
                unvisited.append((maker.ins[1], power if role is Role.MULTIPLICATION else -power))
    if len(weight_steps) != 1 or len(cotangent_steps) != 1:
        raise NotAttention(f"a sum over keys at {m.op.source} is not of weights and cotangents")
    low, high = sorted((weight_steps[0], cotangent_steps[0]))
    between = range(low, high)
    if any(i != chain.divided for i in between):
        raise NotAttention(f"a sum over keys at {m.op.source} is of other weights")
    if chain.divided in between:  # a sum of normalised weights times cotangents, times the divisor
        division, at = chain.factors[chain.divided]
        divisor_id = {place: v for v, place in forward.place_of.items()}[division.reads[1 - at]]
        divisors = [i for i, v in enumerate(backward.operands) if v.id == divisor_id]
        if not divisors:
            raise NotAttention("the backward pass does not read the divisor of the weights")
        rows.append((divisors[0], 1 if weight_steps[0] < cotangent_steps[0] else -1))
    if any(body.key_label in body.labels[x] for x, _ in rows if isinstance(x, int)):
        raise NotAttention(f"a sum over keys at {m.op.source} has a factor per key")
    return RowSum(m.outs[0], body.operands - 1, result_cotangent, tuple(rows), sign)
