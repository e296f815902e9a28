"""Buffers of a program before partitioning: the memory analyses of each region."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from partir_search.ir.analysis.def_use import DefUse, def_use
from partir_search.ir.core import Module, Op, Region, Value
from partir_search.ir.rule import OpRule
from partir_search.simulator.memory.aliases import Aliases, alias
from partir_search.simulator.memory.dtypes import Dtypes
from partir_search.simulator.memory.live_ranges import LiveRanges, live_ranges
from partir_search.simulator.memory.loop_aliasing import CarryPairs, carry_pairs
from partir_search.simulator.memory.materialize import Materialized, Sources, materialize
from partir_search.simulator.target.traits import XlaTraits


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Buffers:
    """Stored values of one region, their aliases and their live ranges.

    Attributes:
      inner: by position of an op with regions, the buffers of each region.
    """

    region: Region
    materialized: Materialized
    aliases: Aliases
    ranges: LiveRanges
    inner: Mapping[int, tuple[Buffers, ...]]

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
    uses, donated = def_use(module), _in_donated(module)
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
    aliases = alias(stored, rules, dtypes, traits, _in_donated(module), ())
    ranges = live_ranges(stored, aliases, dtypes, traits)
    return dataclasses.replace(buffers, aliases=aliases, ranges=ranges)


def _in_donated(module: Module) -> frozenset[int]:
    """Ids of results that take the buffers of donated arguments."""
    donated = {r for a, r in module.ties if a in module.donated}
    results = enumerate(module.body.results)
    return frozenset(x.id for i, x in results if i in donated and isinstance(x, Value))


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
    return tuple(
        _region_buffers(region, rules, uses, dtypes, traits, outside, carries=pairs)
        for region, pairs in zip(op.regions, carries, strict=True)
    )


def _region_buffers(
    region: Region,
    rules: Sequence[OpRule],
    uses: DefUse,
    dtypes: Dtypes,
    traits: XlaTraits,
    outside: Sources,
    in_donated: frozenset[int] = frozenset(),
    carries: CarryPairs = (),
) -> Buffers:
    stored = materialize(region, rules, uses, dtypes, traits, outside)
    inner = {
        at: assign_inner_buffers(region.ops[at], rules, uses, dtypes, traits, outside)
        for at in stored.reads
        if region.ops[at].regions
    }
    aliases = alias(stored, rules, dtypes, traits, in_donated, carries)
    return Buffers(region, stored, aliases, live_ranges(stored, aliases, dtypes, traits), inner)
