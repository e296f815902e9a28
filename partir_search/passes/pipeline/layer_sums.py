"""Totals over layers written out: sums of a number of each layer, read when all are added."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from partir_search.ir.core import Module, Op, Value
from partir_search.ir.role import Role
from partir_search.passes.pipeline.joined import Joined
from partir_search.passes.pipeline.layer_kinds import LayerKind
from partir_search.passes.pipeline.loop_parts import named
from partir_search.rules.registry import role_of

JOINING = {"sum": Role.ADDITION, "and": Role.CONJUNCTION}

Term = tuple[
    LayerKind, int, str
]  # a kind, the number of a total in each layer's update, its monoid
Open = Mapping[Term, frozenset[int]]  # layers summed so far


def refuse_open_sums(module: Module, joined: Joined, kinds: Sequence[LayerKind]) -> None:
    """Sets `why` of kinds of which a number of some layers, and not of all alike, is read.

    Exchanged among the layers, elements keep the sum over all layers, not the sum of each.
    """
    while _refused(module, joined, kinds):
        pass


def _refused(module: Module, joined: Joined, kinds: Sequence[LayerKind]) -> bool:
    """Refuses kinds by one reading of the program; True if any."""
    first = _terms(joined, kinds)
    sums: dict[Value, Open] = {}
    refused = False

    def refuse(op: Op | None, terms: Open, name: str) -> None:
        nonlocal refused
        for kind, _, _ in terms:
            if not kind.why:
                reader = f"{named(op)} reads" if op else "the step returns"
                kind.why = f"{reader} %{name}, a number of single layers"
                refused = True

    for op in module.body.ops:
        if op.results[:1] and op.results[0] in first:
            (term, layer) = first[op.results[0]]
            sums[op.results[0]] = {term: frozenset({layer})}
            continue
        read = [(x, sums[x]) for _, x in op.inputs() if x in sums]
        if not read:
            continue
        joint = _joined([terms for _, terms in read])
        monoids = {term[2] for _, terms in read for term in terms}
        role = role_of(op)
        adds = all(JOINING.get(m) is role or role is Role.CAST for m in monoids)
        if not adds or joint is None:
            for x, terms in read:
                refuse(op, terms, x.name)
        elif rest := {t: layers for t, layers in joint.items() if len(layers) < t[0].count}:
            sums[op.results[0]] = rest
    for result in module.body.results:
        if isinstance(result, Value) and result in sums:
            refuse(None, sums[result], result.name)
    return refused


def _terms(joined: Joined, kinds: Sequence[LayerKind]) -> dict[Value, tuple[Term, int]]:
    """Term and layer of each total of a layer's array."""
    layer_of = {c: (k, i) for k in kinds if not k.why for i, c in enumerate(k.layers)}
    counts: dict[Value, int] = {}
    found: dict[Value, tuple[Term, int]] = {}
    for op, value in joined.ops:
        at = joined.of(value)
        result = op.results[0]
        if at in layer_of and result in joined.totals:
            kind, layer = layer_of[at]
            number = counts.get(at, 0)
            counts[at] = number + 1
            found[result] = (kind, number, joined.totals[result]), layer
    return found


def _joined(parts: Sequence[Open]) -> Open | None:
    """Terms of several sums; None if a layer would count twice."""
    found: dict[Term, frozenset[int]] = {}
    for terms in parts:
        for term, layers in terms.items():
            if layers & found.get(term, frozenset()):
                return None
            found[term] = found.get(term, frozenset()) | layers
    return found
