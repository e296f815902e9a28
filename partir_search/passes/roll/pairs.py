"""Forward layers and the backward layers on their residuals, paired layer by layer."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence

from partir_search.ir.core import Region, Value
from partir_search.passes.roll.find import MIN_LAYERS, Found
from partir_search.passes.roll.places import place_of


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Paired:
    """Layers to roll.

    Attributes:
      found: the layers.
      forward: of backward layers, the forward layers; the backward pass runs in reverse order.
    """

    found: Found
    forward: Found | None = None


def paired(region: Region, found: Sequence[Sequence[Found]]) -> tuple[list[Paired], list[str]]:
    """Layers to roll in program order, and reasons for layers left alone.

    Layers without a partner (the first one of a stack with more parameters) are left out, and
    repeats of one computation on no values of their own that no backward layers belong to. Forward
    layers with earlier ones read in reverse, as in a U-Net, are no backward layers.

    Args:
      found: for each repeat, choices of the first op of a layer.
    """
    chosen: dict[int, Paired] = {}
    reasons = []
    differentiated = any(op.backward for op in region.ops)
    for b, choices in enumerate(found):
        if differentiated and not any(op.backward for op in choices[0].layers.first):
            continue
        votes = {
            (f, forward, backward, total): count
            for f in range(b)
            if f not in chosen
            for forward in found[f]
            for backward in choices
            for total, count in _sums(forward, backward).items()
        }
        if not votes:
            continue
        f, forward, backward, total = max(
            votes, key=lambda vote: (votes[vote], -vote[0], len(_common(*vote[1:])))
        )
        common = _common(forward, backward, total)
        first, last = common.start, common.stop - 1
        if last - first + 1 < MIN_LAYERS:
            reasons.append(f"only {last - first + 1} layers are equal in the backward pass too")
            continue
        forward = forward.clipped(first, last + 1)
        chosen[f] = Paired(forward)
        chosen[b] = Paired(backward.clipped(total - last, total - first + 1), forward)
    for i, choices in enumerate(found):
        layers = choices[0].layers
        if i in chosen or any(op.backward for op in layers.first):
            continue
        made = {v for values in layers.all_made for v in values}
        if any(v in made for op in region.ops if op.backward for _, v in op.inputs()):
            where = place_of(layers.first[0])
            reasons.append(f"the layers at {where} have no equal layers in the backward pass")
        elif any(not given.one for given in layers.given):
            chosen[i] = Paired(choices[0])
    return [chosen[i] for i in sorted(chosen)], reasons


def _common(forward: Found, backward: Found, total: int) -> range:
    """Numbers of the forward layers with a backward layer, of layers with a sum of numbers."""
    first = max(0, total - len(backward.layers.ops) + 1)
    return range(first, min(len(forward.layers.ops) - 1, total) + 1)


def _sums(forward: Found, backward: Found) -> dict[int, int]:
    """Votes for the sum of the numbers of a backward and a forward layer.

    A vote is a list of values, one for each backward layer, all results of forward layers, or
    all read by the forward layers, of the backward layers with a forward layer.
    """
    layers = forward.layers
    passed = {(c.offset, c.result) for c in layers.carries}
    made = {
        v.id: (layer, offset, result)
        for layer, ops in enumerate(layers.ops)
        for offset, op in enumerate(ops)
        for result, v in enumerate(op.results)
        if (offset, result) not in passed
    }
    read: dict[int, tuple[int, int, int]] = {}
    for n, given in enumerate(layers.given):
        if len({v.id for v in given.values}) == len(given.values):
            read.update((v.id, (layer, -1, n)) for layer, v in enumerate(given.values))
    for n, carry in enumerate(c for c in layers.carries if c.younger is None):
        read.update((v.id, (layer, -2, n)) for layer, v in enumerate(layers.entering(carry)))
    votes: collections.Counter[int] = collections.Counter()
    for given in backward.layers.given:
        total = _sum(given.values, made, len(layers.ops))
        total = _sum(given.values, read, len(layers.ops)) if total is None else total
        if total is not None:
            votes[total] += 1
    return votes


def _sum(
    values: Sequence[Value], places: dict[int, tuple[int, int, int]], layers: int
) -> int | None:
    """Sum of the numbers of two layers if found at one place in each layer.

    Args:
      layers: number of forward layers; a backward layer beyond has a further value.
    """
    found = [places.get(v.id) for v in values]
    known = [(k, place) for k, place in enumerate(found) if place is not None]
    sums = {k + place[0] for k, place in known}
    if len(sums) != 1 or len({place[1:] for _, place in known}) != 1:
        return None
    (total,) = sums
    beside = range(max(0, total - layers + 1), min(len(values), total + 1))
    return total if [k for k, _ in known] == list(beside) else None
