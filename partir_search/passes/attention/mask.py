"""Detection of causal masks: queries look at earlier keys only.

The mask is found where scores are selected against a number so low that its exponential is zero.
The operands that it is made of must depend on the difference of two positions alone; then the
mask's first row tells all of the mask.
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

LOW = -1e6  # of which the exponential is zero beside any score
DIFFERENCES = (Role.COMPARISON, Role.SUBTRACTION)
MOVES = (
    *(Role.BROADCAST, Role.CAST, Role.TRANSPOSITION, Role.RESHAPE, Role.COPY),
    Role.SQUEEZE,
)


class Kind(enum.Enum):
    """Positions that a value depends on."""

    NOTHING = 0
    QUERY = 1  # a query's position, plus a number
    KEY = 2
    DIFFERENCE = 3  # only on the difference of the two
    OTHER = 4


def is_causal(body: Body, weight: int) -> bool:
    """Tells whether each query looks at its own key and at no later key.

    Args:
      weight: place of the exponentials.
    """
    made = makers(body)
    if len(body.queries) > 1:
        sizes = [f for f in body.queries if body.sizes[f] == body.sizes[body.walked]]
    else:
        sizes = list(body.queries)
    if len(sizes) != 1 or body.sizes[sizes[0]] != body.sizes[body.walked]:
        return False
    (query,) = sizes
    kinds = _kinds(body, query)
    for place in _terms(body, weight, made):
        if kinds.get(place) is Kind.DIFFERENCE and _first_row_is_causal(body, place, query):
            return True
    return False


def _kinds(body: Body, query: int) -> dict[int, Kind]:
    """Kinds of what rests on no data."""
    kinds: dict[int, Kind] = {}
    for m in body.members:
        found = [
            Kind.NOTHING if isinstance(x, Literal) else kinds.get(x, Kind.OTHER) for x in m.ins
        ]
        kinds[m.outs[0]] = _kind(m, found, body, query)
    return kinds


def _kind(m: Member, found: list[Kind], body: Body, query: int) -> Kind:
    if m.rule.role is Role.INDEX_GRID:
        label = m.factors[m.op.params["dimension"]]
        return Kind.QUERY if label == query else Kind.KEY if label == body.walked else Kind.OTHER
    several = {k for k in found if k is not Kind.NOTHING}
    if not several:
        return Kind.NOTHING if m.rule.elementwise else Kind.OTHER
    if Kind.OTHER in several or not m.rule.elementwise:
        return Kind.OTHER
    if several == {Kind.DIFFERENCE}:
        return Kind.DIFFERENCE
    if several == {Kind.QUERY, Kind.KEY} and m.rule.role in DIFFERENCES:
        return Kind.DIFFERENCE
    if len(several) == 1 and (
        m.rule.role in MOVES
        or (m.rule.role in (Role.ADDITION, Role.SUBTRACTION) and found[0] in several)
    ):
        return found[0] if found[0] in several else found[1]
    return Kind.OTHER


def _terms(body: Body, weight: int, made: dict[int, Member]) -> list[int]:
    """Places of masks that must all hold for a score to be seen."""
    found: list[int] = []
    todo = [weight]
    seen: set[int] = set()
    while todo:
        m = made.get(todo.pop())
        if m is None or m.outs[0] in seen or m.rule.contracts or m.outs[0] not in body.scores:
            continue
        seen.add(m.outs[0])
        if m.rule.role is Role.SELECTION and len(m.ins) == 3 and _low(m.ins[1], made):
            found += _conjuncts(m.reads[0], made)
        elif m.rule.role not in (Role.EXPONENTIAL, Role.SUBTRACTION, *MOVES):
            continue
        todo += m.reads[:1] if m.rule.role is Role.SUBTRACTION else [x for x in m.reads if x >= 0]
    return found


def _conjuncts(place: int, made: dict[int, Member]) -> list[int]:
    m = made.get(place)
    if m is not None and m.rule.role is Role.CONJUNCTION:
        return [p for x in m.reads if x >= 0 for p in _conjuncts(x, made)]
    if m is not None and m.rule.role is Role.BROADCAST and place >= 0:
        return [place, *_conjuncts(m.reads[0], made)]
    return [place]


def _low(x: Place, made: dict[int, Member]) -> bool:
    """True if all of a value is one low number."""
    while not isinstance(x, Literal):
        m = made.get(x)
        if m is None or m.rule.role not in MOVES:
            return False
        x = m.ins[0]
    return bool(x.value <= LOW)


def _first_row_is_causal(body: Body, place: int, query: int) -> bool:
    """Evaluates a mask for the first query, of whose keys none but the first may be seen."""
    made = makers(body)
    needed: set[int] = set()
    todo = [place]
    while todo:
        m = made[todo.pop()]
        needed |= set(m.outs)
        todo += [x for x in m.reads if x >= 0 and x not in needed]
    where = {f: (0, n) for f, n in enumerate(body.sizes) if f != body.walked}
    with jax.ensure_compile_time_eval():
        env = run_members(None, body, {}, where, wanted=lambda m: m.outs[0] in needed)
        row = np.ravel(env[place])
    return bool(row[0]) and not row[1:].any()
