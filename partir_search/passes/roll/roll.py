"""Layers written out in a program become scans over layers."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Hashable
from typing import Any

import jax.numpy as jnp

from partir_search.ir.core import Module, Op, Region, TensorType, Value, walk_regions
from partir_search.passes.roll.early_slices import with_early_slices
from partir_search.passes.roll.ends import with_equal_ends
from partir_search.passes.roll.equal_sums import with_equal_sums
from partir_search.passes.roll.further_ops import Again
from partir_search.passes.roll.layer_scans import LayerPair, layer_scans
from partir_search.passes.roll.numbers import first_equals
from partir_search.passes.roll.plan import RegionPlan, plan_region
from partir_search.passes.roll.recomputed_rows import with_rows_outside
from partir_search.passes.roll.row_casts import with_rows_cast
from partir_search.passes.roll.sliced_rows import with_rows_apart
from partir_search.passes.roll.static_rows import with_static_rows
from partir_search.passes.roll.write import Writer
from partir_search.passes.stacks.fingerprint import Fingerprints
from partir_search.rules.registry import RuleTable

NOTHING = Again()
OCCURRENCES = 6  # of the rarest op of a group of layers

Path = tuple[tuple[int, int], ...]
"""Way to a region: (position of an op in its region, number of the op's region), outermost first;
() for the body of the module."""


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Rolled:
    """A module with layers as scans.

    Attributes:
      module: the module; the given one if nothing was rolled.
      pairs: scans over layers, written here or by the user, by way to their region.
      reasons: why repeats of ops were left alone.
      layers: number of layers rolled here, forward and backward layers counted apart.
      again: number of ops of a layer repeated by backward layers, without cheap ones.
    """

    module: Module
    pairs: dict[Path, tuple[LayerPair, ...]]
    reasons: tuple[str, ...]
    layers: int
    again: int


def roll(module: Module, again: Again = NOTHING) -> Rolled:
    """Rolls equal layers in the body of a module and in the regions of ops.

    Args:
      again: ops of a layer that backward layers repeat for residuals of fewer bytes, besides
        elementwise ops and moves.
    """
    apart = with_rows_apart(with_rows_outside(with_rows_cast(with_static_rows(module))))
    if apart is not module:
        found = _rolled(apart, again)
        if found.layers:
            return found
    return _rolled(module, again)


def _rolled(module: Module, again: Again) -> Rolled:
    """Rolls equal layers of a module as given, with equal ends or with early slices."""
    fingerprints = Fingerprints(module)

    def print_of(op: Op) -> Hashable:
        """Fingerprint of an op, equal for numbers of any value."""
        key, literals, regions = fingerprints.parts(op)
        return key, tuple(map(_without_number, literals)), regions

    ids = itertools.count(len(module.values))

    def make(kind: TensorType, name: str) -> Value:
        return Value(next(ids), kind, name)

    def rolled(form: Module, occurrences: int) -> Rolled:
        rules, equals = RuleTable(), first_equals(form, fingerprints)
        plans: dict[Region, RegionPlan] = {}
        reasons: list[str] = []
        for region in walk_regions(form.body):
            plan, why = plan_region(region, print_of, rules, equals, make, again, occurrences)
            reasons += why
            if plan is not None:
                plans[region] = plan
        new = Writer(form, plans).run() if plans else module
        count = sum(len(r.layers.ops) for plan in plans.values() for r in plan.rollings)
        most = max((plan.again for plan in plans.values()), default=0)
        return Rolled(new, all_layer_scans(new), tuple(dict.fromkeys(reasons)), count, most)

    forms = [module, with_equal_ends(module, print_of, make)]
    early = with_early_slices(module)
    if early is not module:
        forms += [early, with_equal_ends(early, print_of, make)]
    summed = with_equal_sums(module, first_equals(module, fingerprints))
    if summed is not module:
        forms += [summed, with_equal_ends(summed, print_of, make)]
    forms = [form for at, form in enumerate(forms) if form not in forms[:at]]
    found = [rolled(form, 1) for form in forms]
    if not any(form.layers for form in found):  # groups of layers of which none is unlike the rest
        found += [rolled(form, OCCURRENCES) for form in forms]
    best = max(found, key=lambda form: form.layers)  # the first of equal ones
    if best.layers:
        return best
    reasons = dict.fromkeys(reason for form in found for reason in form.reasons)
    return dataclasses.replace(best, reasons=tuple(reasons))


def _without_number(literal: tuple[str, Any, Any] | None) -> Hashable:
    """A literal of a fingerprint, without the value of a number."""
    if literal is None:
        return None
    number, shape, dtype = literal
    return ("" if jnp.issubdtype(dtype, jnp.number) else number), shape, dtype


def all_layer_scans(module: Module) -> dict[Path, tuple[LayerPair, ...]]:
    """Scans over layers of a module, by way to their region; regions without one are left out."""
    found: dict[Path, tuple[LayerPair, ...]] = {}

    def visit(region: Region, path: Path) -> None:
        pairs = layer_scans(region)
        if pairs:
            found[path] = pairs
        for at, op in enumerate(region.ops):
            for i, inner in enumerate(op.regions):
                visit(inner, (*path, (at, i)))

    visit(module.body, ())
    return found


def region_at(module: Module, path: Path) -> Region:
    """The region at the end of a way."""
    region = module.body
    for position, number in path:
        region = region.ops[position].regions[number]
    return region
