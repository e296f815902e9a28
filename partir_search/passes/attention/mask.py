"""Detection of causal masks: a query attends to keys at its own or an earlier position.

The mask is found at a selection between scores and a number with an exponential of zero. A mask
depending on the difference of query and key position alone is determined by its first row.
"""

from __future__ import annotations

import enum

import jax
import numpy as np

from partir_search.ir.composite import Body, Member, Place
from partir_search.ir.core import Literal
from partir_search.ir.role import Role
from partir_search.passes.attention.body import makers
from partir_search.rules.attention import run_members

LOW = -1e6  # a score this low has an exponential of zero beside any other
DIFFERENCES = (Role.COMPARISON, Role.SUBTRACTION)
MOVES = (
    *(Role.BROADCAST, Role.CAST, Role.TRANSPOSITION, Role.RESHAPE, Role.COPY),
    Role.SQUEEZE,
)


class Dependence(enum.Enum):
    """Positions on which a value depends."""

    NOTHING = 0
    QUERY = 1  # the position of a query, plus a constant
    KEY = 2  # the position of a key, plus a constant
    DIFFERENCE = 3  # the difference of both positions
    OTHER = 4  # on both in another way, or on data


def is_causal(body: Body, weight: int) -> bool:
    """True if each query attends to the key at its own position and to no later key.

    Args:
      weight: place of the exponentials.
    """
    made = makers(body)
    if len(body.queries) > 1:
        candidates = [f for f in body.queries if body.sizes[f] == body.sizes[body.key_label]]
    else:
        candidates = list(body.queries)
    if len(candidates) != 1 or body.sizes[candidates[0]] != body.sizes[body.key_label]:
        return False
    (query,) = candidates
    dependences = _dependences(body, query)
    for place in _terms(body, weight, made):
        if dependences.get(place) is Dependence.DIFFERENCE and _first_row_is_causal(
            body, place, query
        ):
            return True
    return False


def _dependences(body: Body, query: int) -> dict[int, Dependence]:
    """Returns, by place, the dependence of each value on query and key positions."""
    dependences: dict[int, Dependence] = {}
    for m in body.members:
        inputs = [
            Dependence.NOTHING if isinstance(x, Literal) else dependences.get(x, Dependence.OTHER)
            for x in m.ins
        ]
        dependences[m.outs[0]] = _dependence(m, inputs, body, query)
    return dependences


def _dependence(m: Member, inputs: list[Dependence], body: Body, query: int) -> Dependence:
    """Returns the dependence of a member's result, given the dependences of its inputs."""
    if m.rule.role is Role.INDEX_GRID:
        label = m.factors[m.op.params["dimension"]]
        return (
            Dependence.QUERY
            if label == query
            else Dependence.KEY
            if label == body.key_label
            else Dependence.OTHER
        )
    distinct = {k for k in inputs if k is not Dependence.NOTHING}
    if not distinct:
        return Dependence.NOTHING if m.rule.elementwise else Dependence.OTHER
    if Dependence.OTHER in distinct or not m.rule.elementwise:
        return Dependence.OTHER
    if distinct == {Dependence.DIFFERENCE}:
        return Dependence.DIFFERENCE
    if distinct == {Dependence.QUERY, Dependence.KEY} and m.rule.role in DIFFERENCES:
        return Dependence.DIFFERENCE
    if len(distinct) == 1 and (
        m.rule.role in MOVES
        or (m.rule.role in (Role.ADDITION, Role.SUBTRACTION) and inputs[0] in distinct)
    ):
        return inputs[0] if inputs[0] in distinct else inputs[1]
    return Dependence.OTHER


def _terms(body: Body, weight: int, made: dict[int, Member]) -> list[int]:
    """Returns the places of the masks whose conjunction selects the visible scores."""
    found: list[int] = []
    todo = [weight]
    seen: set[int] = set()
    while todo:
        m = made.get(todo.pop())
        if m is None or m.outs[0] in seen or m.rule.contracts or m.outs[0] not in body.scores:
            continue
        seen.add(m.outs[0])
        if m.rule.role is Role.SELECTION and len(m.ins) == 3 and _is_low(m.ins[1], made):
            found += _conjuncts(m.reads[0], made)
        elif m.rule.role not in (Role.EXPONENTIAL, Role.SUBTRACTION, *MOVES):
            continue
        todo += m.reads[:1] if m.rule.role is Role.SUBTRACTION else [x for x in m.reads if x >= 0]
    return found


def _conjuncts(place: int, made: dict[int, Member]) -> list[int]:
    """Returns the operands' places of nested conjunctions; for one mask, the place itself."""
    m = made.get(place)
    if m is not None and m.rule.role is Role.CONJUNCTION:
        return [p for x in m.reads if x >= 0 for p in _conjuncts(x, made)]
    if m is not None and m.rule.role is Role.BROADCAST and place >= 0:
        return [place, *_conjuncts(m.reads[0], made)]
    return [place]


def _is_low(x: Place, made: dict[int, Member]) -> bool:
    """True if all elements of a value are one literal of at most `LOW`."""
    while not isinstance(x, Literal):
        m = made.get(x)
        if m is None or m.rule.role not in MOVES:
            return False
        x = m.ins[0]
    return bool(x.value <= LOW)


def _first_row_is_causal(body: Body, place: int, query: int) -> bool:
    """True if the mask shows the first query its own key only, computed at planning time."""
    made = makers(body)
    needed: set[int] = set()
    todo = [place]
    while todo:
        m = made[todo.pop()]
        needed |= set(m.outs)
        todo += [x for x in m.reads if x >= 0 and x not in needed]
    where = {f: (0, n) for f, n in enumerate(body.sizes) if f != body.key_label}
    with jax.ensure_compile_time_eval():
        env = run_members(None, body, {}, where, wanted=lambda m: m.outs[0] in needed)
        row = np.ravel(env[place])
    return bool(row[0]) and not row[1:].any()
