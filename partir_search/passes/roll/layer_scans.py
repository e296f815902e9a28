"""Scans over layers of a region, forward and backward, as written by `roll` or by the user."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from partir_search.ir.core import Op, Region, Value
from partir_search.ir.role import Role
from partir_search.rules.control_flow import ACCUMULATES
from partir_search.rules.registry import role_of


@dataclasses.dataclass(frozen=True, slots=True)
class LayerScan:
    """A scan over layers.

    Attributes:
      position: of the op in the region.
      layers: number of iterations.
      reverse: True if the last layer of the stacks runs first.
      consts: operands read whole by every layer.
      carry: operands handed from layer to layer; result i is the last value of `carry[i]`.
      parameters: operands stacked over the layers, one element read by each layer. In a
        backward scan without `residuals`.
      residuals: of a backward scan, (operand, result of the forward scan) pairs: stacked operands
        made by the forward scan.
      stacks: results stacked over the layers: of a forward scan residuals, of a backward scan
        gradients.
      carry_stacks: of a forward scan, the results among `stacks` with the carry entering each
        layer, as (result, operand in `carry`).
    """

    position: int
    layers: int
    reverse: bool
    consts: tuple[int, ...]
    carry: tuple[int, ...]
    parameters: tuple[int, ...]
    residuals: tuple[tuple[int, int], ...]
    stacks: tuple[int, ...]
    carry_stacks: tuple[tuple[int, int], ...]


@dataclasses.dataclass(frozen=True, slots=True)
class LayerPair:
    """A forward scan over layers and the backward scan on the residuals, if any."""

    forward: LayerScan
    backward: LayerScan | None


def layer_scans(region: Region) -> tuple[LayerPair, ...]:
    """Scans over layers in a region, in program order of the forward scans.

    A scan over layers has a carry, and stacked operands; layers with one set of parameters have
    stacked results alone, read by a backward scan. The backward scan has as many iterations in
    reverse, and the most stacked operands among the stacked results of the forward scan. In a
    region with ops of a backward pass it is one of them.
    """
    scans = [i for i, op in enumerate(region.ops) if _over_layers(op)]
    differentiated = any(op.backward for op in region.ops)
    partner: dict[int, int] = {}
    for b in scans:
        if differentiated and not region.ops[b].backward:
            continue
        read = {x for x in stacked_operands(region.ops[b]) if isinstance(x, Value)}
        shared = {
            f: len(read.intersection(stacked_results(region.ops[f])))
            for f in scans
            if f < b and f not in partner.values() and _opposite(region.ops[f], region.ops[b])
        }
        best = max(shared, key=lambda f: shared[f], default=-1)
        if best >= 0 and shared[best] and best not in partner:
            partner[best] = b
    backward = set(partner.values())
    return tuple(
        LayerPair(
            _described(region.ops, f, None),
            _described(region.ops, partner[f], region.ops[f]) if f in partner else None,
        )
        for f in scans
        if f not in backward and (f in partner or stacked_operands(region.ops[f]))
    )


def stacked_operands(scan: Op) -> Sequence[object]:
    """Operands read one element an iteration."""
    return scan.operands[scan.params["num_consts"] + scan.params["num_carry"] :]


def stacked_results(scan: Op) -> Sequence[Value]:
    """Results written one element an iteration."""
    return scan.results[scan.params["num_carry"] :]


def _over_layers(op: Op) -> bool:
    return (
        role_of(op) is Role.SCAN
        and not op.params.get(ACCUMULATES)
        and op.params["num_carry"] > 0
        and len(stacked_operands(op)) + len(stacked_results(op)) > 0
    )


def _opposite(forward: Op, backward: Op) -> bool:
    one, other = forward.params, backward.params
    return bool(one["length"] == other["length"] and one["reverse"] != other["reverse"])


def _described(ops: Sequence[Op], position: int, forward: Op | None) -> LayerScan:
    op = ops[position]
    consts, carry = int(op.params["num_consts"]), int(op.params["num_carry"])
    first = consts + carry
    made = {r: i for i, r in enumerate(forward.results)} if forward else {}
    residuals = tuple(
        (i, made[x])
        for i, x in enumerate(op.operands[first:], first)
        if isinstance(x, Value) and x in made
    )
    kept = {i for i, _ in residuals}
    body = op.regions[0]
    arguments = {a: i for i, a in enumerate(body.args[:first]) if i >= consts}
    return LayerScan(
        position=position,
        layers=int(op.params["length"]),
        reverse=bool(op.params["reverse"]),
        consts=tuple(range(consts)),
        carry=tuple(range(consts, first)),
        parameters=tuple(i for i in range(first, len(op.operands)) if i not in kept),
        residuals=residuals,
        stacks=tuple(range(carry, len(op.results))),
        carry_stacks=tuple(
            (i, arguments[x])
            for i, x in enumerate(body.results)
            if i >= carry and isinstance(x, Value) and x in arguments
        ),
    )


def operands_behind(scan: Op, result: int) -> frozenset[int]:
    """Operands of a scan behind a result; with a carry, all operands behind the carry.

    A stacked result without a carry behind (a cast of weights) is the same in each run of the scan
    on equal operands.
    """
    body = scan.regions[0]
    consts, carry = int(scan.params["num_consts"]), int(scan.params["num_carry"])
    behind = {a: frozenset({i}) for i, a in enumerate(body.args)}
    while True:
        for op in body.ops:
            read = (behind.get(v, frozenset()) for _, v in op.inputs())
            behind.update(dict.fromkeys(op.results, frozenset().union(*read)))
        found = [
            behind.get(x, frozenset()) if isinstance(x, Value) else frozenset()
            for x in body.results
        ]
        before = [behind[a] for a in body.args]
        for i in range(carry):
            behind[body.args[consts + i]] |= found[i]
        if before == [behind[a] for a in body.args]:
            return found[result]
