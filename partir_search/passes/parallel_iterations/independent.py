"""Scans whose iterations depend on no earlier iteration, but for sums and counters."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np

from partir_search.ir.core import Literal, Op, Operand, Region, Value, walk_regions
from partir_search.ir.kind import Kind
from partir_search.ir.role import Role
from partir_search.ir.rule import OpRule
from partir_search.passes.roll.added import added_carries, terms_of
from partir_search.rules.control_flow import ACCUMULATES
from partir_search.rules.other import user_sharding
from partir_search.rules.random import draws_in_order
from partir_search.rules.registry import edges_of, role_of

_NOT_BATCHED = frozenset({Kind.EFFECT, Kind.KERNEL, Kind.OPAQUE})


@dataclasses.dataclass(frozen=True, slots=True)
class IndependentScan:
    """Carries of a scan with independent iterations, by position among the carries.

    Attributes:
      sums: values of each iteration added to a carry.
      counters: the whole number that each iteration adds to a scalar.
      kept: carries that no iteration changes.
      additions: ops of the body that add to `sums`.
    """

    sums: Mapping[int, tuple[Value, ...]]
    counters: Mapping[int, Literal]
    kept: frozenset[int]
    additions: frozenset[Op]


def independent(op: Op, rule_of: Callable[[Op], OpRule]) -> IndependentScan | None:
    """Carries of a scan with independent iterations; None for any further op.

    None, too, for loops over microbatches written by passes, and bodies with effects, kernels of
    the user, or axes of the mesh.
    """
    if role_of(op) is not Role.SCAN or op.params.get(ACCUMULATES):
        return None
    (body,) = op.regions
    consts, count = int(op.params["num_consts"]), int(op.params["num_carry"])
    if not all(isinstance(x, Value) for x in body.results):
        return None
    added = {each.number: each.additions for each in added_carries(op)}
    makers = {r: maker for maker in body.ops for r in maker.results}
    sums: dict[int, tuple[Value, ...]] = {}
    counters: dict[int, Literal] = {}
    kept, additions = set[int](), set[Op]()
    for number in range(count):
        carry, result = body.args[consts + number], body.results[number]
        assert isinstance(result, Value)
        step = _step(carry, makers.get(result))
        terms = terms_of(carry, added.get(number, ()))
        if _passed(result, makers) is carry:
            kept.add(number)
        elif step is not None:
            counters[number] = step
        elif terms:
            sums[number] = terms
            additions.update(added[number])
        else:
            return None
    if _unbatched(body, rule_of):
        return None
    return IndependentScan(sums, counters, frozenset(kept), frozenset(additions))


def _passed(x: Value, makers: Mapping[Value, Op]) -> Operand:
    """Operand of a recomputed region returned unchanged as `x`, through one or several regions.

    `x` itself if no recomputed region returns `x` unchanged.
    """
    maker = makers.get(x)
    while maker is not None and role_of(maker) is Role.CHECKPOINT:
        (region,) = maker.regions
        result = region.results[maker.results.index(x)]
        if result not in region.args:
            break
        operand = maker.operands[region.args.index(result)]
        if not isinstance(operand, Value):
            return operand
        x, maker = operand, makers.get(operand)
    return x


def _unbatched(body: Region, rule_of: Callable[[Op], OpRule]) -> bool:
    """True if `jax.vmap` of a body would change effects, kernels, shardings or random numbers."""
    for op in (op for region in walk_regions(body) for op in region.ops):
        if op.effect or "manual" in op.params or user_sharding(op) is not None:
            return True
        if draws_in_order(op) or _ends_in_branches(op):
            return True
        if not op.regions and rule_of(op).kind in _NOT_BATCHED:
            return True
    return False


def _ends_in_branches(op: Op) -> bool:
    """True for a choice among branches with a loop that data end.

    `jax.vmap` runs all branches, also on data with which a loop does not end.
    """
    if len(op.regions) < 2 or edges_of(op).carries:
        return False
    inner = (x for branch in op.regions for region in walk_regions(branch) for x in region.ops)
    loops = (x for x in inner if x.regions and role_of(x) is not Role.SCAN)
    return any(edges_of(x).carries for x in loops)


def _step(carry: Value, maker: Op | None) -> Literal | None:
    """Whole number added to a scalar carry in each iteration; None for any further carry."""
    if maker is None or role_of(maker) is not Role.ADDITION or carry.type.shape:
        return None
    others = [x for x in maker.operands if x is not carry]
    if len(others) != 1 or not np.issubdtype(carry.type.dtype, np.integer):
        return None
    return others[0] if isinstance(others[0], Literal) else None
