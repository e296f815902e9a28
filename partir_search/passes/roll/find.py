"""Layers of a region: tandem repeats of ops, a value handed from copy to copy."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from partir_search.ir.core import Op, Region
from partir_search.ir.kind import Kind
from partir_search.ir.rule import OpRule
from partir_search.passes.fold.fold import MIN_PERIOD, Repeat, find_repeats
from partir_search.passes.fold.linear import weight
from partir_search.passes.roll.layers import Layers, Unlike, crossing_bytes, layers_of
from partir_search.passes.roll.places import named, place_of

Prints = np.ndarray[Any, Any]

MIN_LAYERS = 3
MAX_CHOICES = 8  # of the first op of a layer


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Found:
    """Layers in a region's list of ops: position of the first op, and ops per layer."""

    start: int
    period: int
    layers: Layers

    @property
    def stop(self) -> int:
        """Position after the last layer."""
        return self.start + self.period * len(self.layers.ops)

    def clipped(self, first: int, stop: int) -> Found:
        """The layers from `first` to before `stop`."""
        if stop - first == len(self.layers.ops):
            return self
        layers = self.layers.with_ops(self.layers.ops[first:stop])
        return Found(self.start + first * self.period, self.period, layers)


def find_layers(
    region: Region,
    print_of: Callable[[Op], Hashable],
    rule_of: Callable[[Op], OpRule],
    occurrences: int,
) -> tuple[list[list[Found]], list[str]]:
    """Layers of a region in program order, and reasons for repeats left alone.

    Returns:
      for each repeat, the choices of the first op with the fewest bytes between layers; reasons.

    Args:
      print_of: function from an op to a fingerprint, equal for equal computations.
      rule_of: function from an op to the rule.
      occurrences: of `find_repeats`.
    """
    ops = region.ops
    prints = numbered(ops, print_of)
    found: list[list[Found]] = []
    reasons: list[str] = []
    for repeat in find_repeats(prints, occurrences=occurrences):
        one = ops[repeat.start : repeat.start + repeat.period]
        if sum(map(weight, one)) < MIN_PERIOD and not _repeats_on_purpose(repeat, one, rule_of):
            continue
        where = f"{repeat.copies} equal layers at {place_of(one[0])}"
        choices, reason = _choices(ops, repeat, slack_of(prints, repeat))
        if any(op.effect for op in one):
            reason = "they have side effects"
        elif choices and not choices[0].layers.carries:
            continue
        elif choices and repeat.copies < MIN_LAYERS:
            reason = f"fewer than {MIN_LAYERS}{_departure(ops, repeat, slack_of(prints, repeat))}"
        if not reason:
            choices += _later(ops, repeat, slack_of(prints, repeat), choices[0])
        if reason:
            reasons.append(f"{where}: {reason}")
        else:
            found.append(choices)
    return found, reasons


def _repeats_on_purpose(repeat: Repeat, one: Sequence[Op], rule_of: Callable[[Op], OpRule]) -> bool:
    """True for short layers with a contraction, three or more: two may be alike by chance.

    Args:
      one: ops of the first layer.
    """
    return repeat.copies >= MIN_LAYERS and any(_contracts(op, rule_of) for op in one)


def _contracts(op: Op, rule_of: Callable[[Op], OpRule]) -> bool:
    """True for contractions and ops of regions with one."""
    inner = (o for region in op.regions for o in region.ops)
    return rule_of(op).kind is Kind.CONTRACTION or any(_contracts(o, rule_of) for o in inner)


def _departure(ops: Sequence[Op], repeat: Repeat, slack: int) -> str:
    """The first op of the layer after a repeat that differs, beside that of the last layer."""
    at = repeat.stop + slack
    if at >= len(ops):
        return ""
    last = f"layer {repeat.copies} has {named(ops[at - repeat.period])}"
    return f", {last} where layer {repeat.copies + 1} has {named(ops[at])}"


def numbered(ops: Sequence[Op], print_of: Callable[[Op], Hashable]) -> Prints:
    """A number for the fingerprint and pass of each op."""
    ids: dict[Hashable, int] = {}
    found = [ids.setdefault((print_of(op), op.backward), len(ids)) for op in ops]
    return np.array(found, dtype=np.int64)


def slack_of(prints: Prints, repeat: Repeat) -> int:
    """Number of ops by which all copies of a repeat may start later."""
    slack = 0
    while (
        slack < repeat.period - 1
        and repeat.stop + slack < len(prints)
        and prints[repeat.stop + slack] == prints[repeat.stop + slack - repeat.period]
    ):
        slack += 1
    return slack


def _later(ops: Sequence[Op], repeat: Repeat, slack: int, found: Found) -> list[Found]:
    """Layers of a repeat from a later op on, one layer less, with fewer bytes between layers."""
    starts = range(repeat.start + slack + 1, repeat.start + repeat.period)
    fewer = dataclasses.replace(repeat, start=starts.start, copies=repeat.copies - 1)
    if fewer.copies < MIN_LAYERS or not starts:
        return []
    later, _ = _choices(ops, fewer, len(starts) - 1)
    least = crossing_bytes(ops, found.start, repeat.period)
    return [c for c in later if crossing_bytes(ops, c.start, repeat.period) <= least]


def _choices(ops: Sequence[Op], repeat: Repeat, slack: int) -> tuple[list[Found], str]:
    """Layers of a repeat by first op, the fewest bytes between layers; a reason for none."""
    period, reason = repeat.period, ""
    nbytes = {
        start: crossing_bytes(ops, start, period)
        for start in range(repeat.start, repeat.start + slack + 1)
    }
    found: list[Found] = []
    for start in sorted(nbytes, key=lambda start: nbytes[start]):
        if len(found) == MAX_CHOICES or (found and nbytes[start] > nbytes[found[0].start]):
            break
        copies = [ops[start + k * period :][:period] for k in range(repeat.copies)]
        try:
            found.append(Found(start, period, layers_of(copies)))
        except Unlike as error:
            reason = reason or str(error)
    return found, "" if found else reason
