"""Operands of ops with regions, equal in all iterations: their values outside."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from partir_search.ir.core import Module, Op, Operand, Value
from partir_search.ir.data_flow import DataFlowEdges
from partir_search.ir.rule import OpRule

Places = list[tuple[int, int]]  # (region, argument) pairs


def values_outside(module: Module, rule: Callable[[Op], OpRule]) -> Mapping[int, Value]:
    """By id, the equal value one region further out.

    Holds arguments of regions equal in all iterations, and results of ops with regions returning
    an equal argument (of an optimization barrier).
    """
    found: dict[int, Value] = {}
    for op in module.ops:
        if not op.regions:
            continue
        edges = rule(op).data_flow
        outer: dict[Operand, Value] = {}
        for operand, places in arguments_of(edges, stacked=False).items():
            x = op.operands[operand]
            if isinstance(x, Value):
                outer.update({op.regions[r].args[a]: x for r, a in places})
        found.update({arg.id: x for arg, x in outer.items() if isinstance(arg, Value)})
        returned: dict[int, list[Operand]] = {}
        for region, place, result, stacked in edges.outputs:
            if not stacked:
                returned.setdefault(result, []).append(op.regions[region].results[place])
        for result, made in returned.items():
            sources = {outer.get(x) if isinstance(x, Value) else None for x in made}
            source = sources.pop()
            if source is not None and not sources:
                found[op.results[result].id] = source
    return found


def arguments_of(edges: DataFlowEdges, *, stacked: bool = True) -> dict[int, Places]:
    """By operand, without carries, the arguments of regions with the operand's value or elements.

    Args:
      stacked: with operands read element by element.
    """
    carried = {(to, place) for _, _, to, place in edges.carries}
    shared: dict[tuple[int, int], Places] = {}
    for region, place, other, other_place in edges.shared:
        shared.setdefault((other, other_place), []).append((region, place))
    found: dict[int, Places] = {}
    for operand, region, place, dims in edges.inputs:
        if (stacked or not dims) and (region, place) not in carried:
            found.setdefault(operand, []).append((region, place))
            found[operand] += shared.get((region, place), ())
    return found
