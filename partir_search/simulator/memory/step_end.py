"""Memory of updates: their order in a step, and what they wait for.

XLA:TPU orders a program for memory, and updates run as soon as their gradients are there
(`XlaTraits.updates_early`); all_reduces of gradients are combined, and wait for one another
(`XlaTraits.combined_reduction_bytes`). Where a collective is asynchronous, another scheduler puts
updates at the end of the step. Values gathered for donated arguments follow them, and are copied
into the arguments' buffers at last (`XlaTraits.gathers_donated_last`).
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator

from partir_search.lowering.local_ir import Reshard, RingReshard
from partir_search.lowering.reshard_steps import AllGather, AllReduce, HaloPermute, Permute
from partir_search.simulator.arrays import Floats
from partir_search.simulator.memory.curve import Curve
from partir_search.simulator.memory.model import MemoryModel
from partir_search.simulator.memory.temporaries import Temporaries
from partir_search.simulator.program_facts import ProgramFacts
from partir_search.simulator.schedule import ScheduledRegion
from partir_search.simulator.target.traits import XlaTraits
from partir_search.simulator.time.collective_cost import gathers_into_donated


def curve_of(scheduled: ScheduledRegion, memory: MemoryModel, traits: XlaTraits) -> Curve:
    """The curve of a program's live bytes: with early updates, or with updates at the end."""
    if memory.early is None or runs_asynchronously(scheduled, traits):
        return memory.curve
    return memory.early


def runs_asynchronously(scheduled: ScheduledRegion, traits: XlaTraits) -> bool:
    """True if a program has an asynchronous collective: a permute, or an all_gather on a target
    that starts them early.
    """
    gathers = traits.async_all_gather != "never"
    return any(
        isinstance(r, RingReshard)
        or isinstance(r.step, Permute | HaloPermute)
        or (gathers and isinstance(r.step, AllGather))
        for r in _reshards(scheduled)
    )


def _reshards(scheduled: ScheduledRegion) -> Iterator[Reshard]:
    """Reshards of a region and of all regions inside."""
    yield from (item for item, *_ in scheduled.steps if isinstance(item, Reshard))
    for regions in scheduled.inner.values():
        for region, _ in regions:
            if region is not None:
                yield from _reshards(region)


def with_updates(
    temporaries: Temporaries,
    scheduled: ScheduledRegion,
    nbytes: Floats,
    facts: ProgramFacts,
    memory: MemoryModel,
    curve: Curve,
    traits: XlaTraits,
) -> Temporaries:
    """Temporaries with what updates wait for.

    Args:
      nbytes: [values] local bytes.
      curve: of the program.
    """
    extra = temporaries.bytes_at.copy()
    if curve is memory.early:
        _combine(extra, scheduled, nbytes, memory, traits)
    elif traits.gathers_donated_last and runs_asynchronously(scheduled, traits):
        gathered: dict[int, tuple[int, int]] = {}  # the last of several has the whole value
        for item, *_ in scheduled.steps:
            if isinstance(item, Reshard) and gathers_into_donated(item, facts):
                value, times = item.target.value, memory.regions.moves(item.op, item.target.value)
                gathered[value.id] = item.target.nbytes, times
        total = sum(size * times for size, times in gathered.values())
        on_chip = traits.vmem_resident_fraction * curve.vmem_bytes
        largest = max((size for size, _ in gathered.values()), default=0)
        extra[len(scheduled.members) - 1] += total - min(largest, on_chip)
    return dataclasses.replace(temporaries, bytes_at=extra)


def _combine(
    extra: Floats,
    scheduled: ScheduledRegion,
    nbytes: Floats,
    memory: MemoryModel,
    traits: XlaTraits,
) -> None:
    """Adds gradients that wait for the all_reduces of others, in place."""
    most = traits.combined_reduction_bytes
    waiting: dict[object, list[tuple[int, float]]] = collections.defaultdict(list)

    def end(group: list[tuple[int, float]]) -> None:
        last = max((at for at, _ in group), default=0)
        for at, size in group:
            extra[at + 1 : last + 1] += size
        group.clear()

    for item, at, *_ in scheduled.steps:
        if not isinstance(item, Reshard) or not isinstance(item.step, AllReduce):
            continue
        v = item.target.value
        if v.id not in memory.early_values:
            continue
        size, group = float(nbytes[v.id]), waiting[item.step.axes]
        if sum(s for _, s in group) + size > most:
            end(group)
        group.append((at, size))
        layers = memory.regions.moves(item.op, v)
        if layers > 1:  # of a quotient: further layers' gradients
            extra[at] += max(0.0, min((layers - 1) * size, most - size))
    for group in waiting.values():
        end(group)
