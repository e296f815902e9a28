"""Plan of a region: layers to roll, ops run before, values read of single layers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Mapping, Set

from partir_search.ir.core import Op, Region, Value
from partir_search.ir.kind import Kind
from partir_search.ir.rule import OpRule
from partir_search.passes.roll.again import MakeValue, made_again, reading
from partir_search.passes.roll.find import Found, find_layers
from partir_search.passes.roll.further_ops import Again
from partir_search.passes.roll.layers import Layers, layers_of
from partir_search.passes.roll.outside import split_off
from partir_search.passes.roll.pairs import paired


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Rolling:
    """Layers to write as one scan.

    Attributes:
      start, stop: positions in the region of the ops to replace.
      before: ops to keep, before the scan.
      layers: the ops of the layers, in execution order.
      reverse: True if the first layer to run is the last of the stacks.
    """

    start: int
    stop: int
    before: tuple[Op, ...]
    layers: Layers
    reverse: bool


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class RegionPlan:
    """Layers of a region to roll.

    Attributes:
      rollings: in program order.
      same: value to read in place of an equal value.
      requested: stacks read by scans, each a tuple of values in the order of the layers.
      single: values of layers read by ops outside of all layers, or returned.
      again: number of ops of a layer repeated by backward layers, without cheap ones.
    """

    rollings: tuple[Rolling, ...]
    same: dict[Value, Value]
    requested: Set[tuple[Value, ...]]
    single: Set[Value]
    again: int


def plan_region(
    region: Region,
    print_of: Callable[[Op], Hashable],
    rule_of: Callable[[Op], OpRule],
    equals: Mapping[int, Value],
    make: MakeValue,
    again: Again,
    occurrences: int,
) -> tuple[RegionPlan | None, list[str]]:
    """Layers of a region to roll, None for nothing, and reasons for repeats left alone.

    Args:
      print_of: function from an op to a fingerprint, equal for equal computations.
      rule_of: function from an op to the rule.
      equals: by value id, the first of all values known to be equal.
      make: makes a new value.
      again: further ops to repeat.
      occurrences: of `find_repeats`.
    """

    def moves(op: Op) -> bool:
        return rule_of(op).moves

    def cheap(op: Op) -> bool:
        return rule_of(op).moves or rule_of(op).kind is Kind.ELEMENTWISE or op.id in scores

    scores = again.scores
    found, reasons = find_layers(region, print_of, rule_of, occurrences)
    chosen, alone = paired(region, found)
    reasons += alone
    if not chosen:
        return None, reasons
    inner = {v for pair in chosen for vs in pair.found.layers.all_made for v in vs}
    outer = {i: v for i, v in equals.items() if v not in inner}
    same: dict[Value, Value] = {}
    made: set[int] = set()  # ids of values made by scans
    done: dict[Found, Layers] = {}
    rollings: list[Rolling] = []
    most = 0
    for pair in chosen:
        old = pair.found
        layers = layers_of([reading(ops, same) for ops in old.layers.ops], outer)
        if pair.forward is not None:
            layers, count = made_again(layers, done[pair.forward], cheap, make, again)
            most = max(most, count)
        others = (*region.ops[: old.start], *region.ops[old.stop :])
        read = {v for op in others for _, v in op.inputs()}
        split = split_off(layers, made, read, moves)
        same |= split.same
        done[old] = split.layers
        made |= {r.id for ops in split.layers.ops for op in ops for r in op.results}
        before, reverse = reading(split.before, same), pair.forward is not None
        rollings.append(Rolling(old.start, old.stop, before, split.layers, reverse))
    requested = {
        given.values[::-1] if rolling.reverse else given.values
        for rolling in rollings
        for given in rolling.layers.given
        if not given.one
    }
    single = _single(region, rollings)
    return RegionPlan(tuple(rollings), same, requested, single, most), reasons


def _single(region: Region, rollings: list[Rolling]) -> set[Value]:
    """Values of layers read one by one: by further ops, as constants or first carries of scans."""
    stacks: set[tuple[Value, ...]] = set()
    found = {x for x in region.results if isinstance(x, Value)}
    at = 0
    for rolling in rollings:
        layers = rolling.layers
        for op in (*region.ops[at : rolling.start], *rolling.before):
            found.update(v for _, v in op.inputs())
        at = rolling.stop
        for given in layers.given:
            key = given.values[::-1] if rolling.reverse else given.values
            if given.one:
                found.add(given.values[0])
            elif key not in stacks:
                found.update(key)
        found.update(c.initial for c in layers.carries)
        made = [
            layers.made(o, r) for o, op in enumerate(layers.first) for r in range(len(op.results))
        ]
        made += [layers.entering(c) for c in layers.carries]
        stacks |= {key[::-1] if rolling.reverse else key for key in made}
    for op in region.ops[at:]:
        found.update(v for _, v in op.inputs())
    return found
