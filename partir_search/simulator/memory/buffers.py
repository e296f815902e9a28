"""Buffers of a program before partitioning: the memory analyses of each region."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from partir_search.ir.analysis.def_use import DefUse, def_use
from partir_search.ir.core import Module, Op, Region, Value
from partir_search.ir.rule import OpRule
from partir_search.rules.control_flow import ACCUMULATES
from partir_search.simulator.memory.aliases import Aliases, alias
from partir_search.simulator.memory.dtypes import Dtypes
from partir_search.simulator.memory.early_updates import early_ends
from partir_search.simulator.memory.live_ranges import LiveRanges, live_ranges
from partir_search.simulator.memory.loop_aliasing import CarryPairs, carry_pairs
from partir_search.simulator.memory.materialize import Materialized, Sources, materialize
from partir_search.simulator.target.traits import XlaTraits


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Buffers:
    """Stored values of one region, their aliases and their live ranges.

    Attributes:
      inner: by position of an op with regions, the buffers of each region.
      repeats: by position of an op with regions, True if one region runs several times.
    """

    region: Region
    materialized: Materialized
    aliases: Aliases
    ranges: LiveRanges
    inner: Mapping[int, tuple[Buffers, ...]]
    repeats: Mapping[int, bool]

    def __str__(self) -> str:
        return "\n".join(map(str, (self.materialized, self.aliases, self.ranges)))


def assign_buffers(
    module: Module, rules: Sequence[OpRule], dtypes: Dtypes, traits: XlaTraits
) -> Buffers:
    """Buffers of a module's body and of all regions inside.

    Args:
      rules: per op id.
    """
    outside = {v: (v,) for v in module.constants}
    uses, donated = def_use(module), _donated(module)
    return _region_buffers(module.body, rules, uses, dtypes, traits, outside, donated)


def with_donations(
    buffers: Buffers, module: Module, rules: Sequence[OpRule], dtypes: Dtypes, traits: XlaTraits
) -> Buffers:
    """Buffers of a module that differs from another in its donated arguments alone.

    Args:
      buffers: of the other module's body.
      module: the module.
      rules: per op id.
    """
    stored = buffers.materialized
    donated = _donated(module)
    aliases = alias(stored, rules, dtypes, traits, frozenset(donated), ())
    early = early_ends(stored, donated) if traits.updates_early else {}
    ranges = live_ranges(stored, aliases, dtypes, traits, early=early)
    return dataclasses.replace(buffers, aliases=aliases, ranges=ranges)


def _donated(module: Module) -> dict[int, int]:
    """By id of a result in the buffer of a donated argument, the argument's id."""
    args, results = module.body.args, module.body.results
    ties = ((args[a], results[r]) for a, r in module.ties if a in module.donated)
    return {x.id: arg.id for arg, x in ties if isinstance(x, Value)}


def assign_inner_buffers(
    op: Op,
    rules: Sequence[OpRule],
    uses: DefUse,
    dtypes: Dtypes,
    traits: XlaTraits,
    outside: Sources = MappingProxyType({}),
) -> tuple[Buffers, ...]:
    """Buffers of each region of an op.

    Args:
      rules: per op id.
      uses: def-use analysis of the module.
      outside: sources of captured values.
    """
    edges = rules[op.id].data_flow
    carries = [carry_pairs(edges, number) for number in range(len(op.regions))]
    defers = bool(op.params.get(ACCUMULATES)) and traits.defers_accumulated_products
    return tuple(
        _region_buffers(region, rules, uses, dtypes, traits, outside, carries=pairs, defers=defers)
        for region, pairs in zip(op.regions, carries, strict=True)
    )


def _region_buffers(
    region: Region,
    rules: Sequence[OpRule],
    uses: DefUse,
    dtypes: Dtypes,
    traits: XlaTraits,
    outside: Sources,
    donated: Mapping[int, int] = MappingProxyType({}),
    carries: CarryPairs = (),
    defers: bool = False,
) -> Buffers:
    stored = materialize(region, rules, uses, dtypes, traits, outside)
    inner = {
        at: assign_inner_buffers(region.ops[at], rules, uses, dtypes, traits, outside)
        for at in stored.reads
        if region.ops[at].regions
    }
    aliases = alias(stored, rules, dtypes, traits, frozenset(donated), carries)
    deferred = _accumulated_products(stored, rules, uses, carries, inner) if defers else {}
    early = early_ends(stored, donated) if traits.updates_early else {}
    ranges = live_ranges(stored, aliases, dtypes, traits, deferred, early)
    repeats = {
        at: max(rules[region.ops[at].id].data_flow.trip_counts, default=1) > 1 for at in inner
    }
    return Buffers(region, stored, aliases, ranges, inner, repeats)


def _accumulated_products(
    stored: Materialized,
    rules: Sequence[OpRule],
    uses: DefUse,
    carries: CarryPairs,
    inner: Mapping[int, tuple[Buffers, ...]],
) -> dict[int, int]:
    """By position of a product that is added to a carry alone, the position of the last loop.

    See `XlaTraits.defers_accumulated_products`.

    Args:
      inner: by position of an op with regions, the buffers of each region.
    """
    region, last = stored.region, max(inner, default=-1)
    totals = {x.id for result, _ in carries if isinstance(x := region.results[result], Value)}

    def accumulated(value: Value) -> bool:
        while value.id not in totals:
            readers = uses.users[value.id]
            if len(readers) != 1 or len(readers[0].results) != 1:
                return False
            rule = rules[readers[0].id]
            if not (rule.elementwise or rule.moves):
                return False
            (value,) = readers[0].results
        return True

    return {
        at: last
        for at in stored.reads
        if at < last
        and rules[region.ops[at].id].contracts
        and all(map(accumulated, region.ops[at].results))
    }
