"""Memory of updates: order in a step, and reductions awaited.

XLA:TPU orders a program for memory, and updates run as soon as their gradients are made
(`XlaTraits.updates_early`); all_reduces of gradients are combined, and wait for one another
(`XlaTraits.combined_reduction_bytes`). Where a collective is asynchronous, another scheduler puts
updates at the end of the step. Values gathered for donated arguments follow them, and are copied
into the arguments' buffers at last (`XlaTraits.gathers_donated_last`).
"""

from __future__ import annotations

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


def waiting_bytes(
    scheduled: ScheduledRegion, nbytes: Floats, memory: MemoryModel, traits: XlaTraits
) -> float:
    """Bytes of the gradients waiting for one another's all_reduces, with updates early.

    The largest gradients of one combined all_reduce, but for the largest of all.

    Args:
      nbytes: [values] local bytes.
    """
    found: dict[int, tuple[float, int]] = {}
    for item, *_ in scheduled.steps:
        if isinstance(item, Reshard) and isinstance(item.step, AllReduce):
            v = item.target.value.id
            if v in memory.early_values:
                found[v] = float(nbytes[v]), memory.regions.runs(item)
    together, largest = 0.0, max((size for size, _ in found.values()), default=0.0)
    for size, times in sorted(found.values(), reverse=True):
        if size:
            together += size * min(times, (traits.combined_reduction_bytes - together) // size)
    return max(0.0, together - largest)


def with_gathers(
    temporaries: Temporaries,
    scheduled: ScheduledRegion,
    facts: ProgramFacts,
    memory: MemoryModel,
    traits: XlaTraits,
) -> Temporaries:
    """Temporaries with values gathered for donated arguments, at the end of the step."""
    if not traits.gathers_donated_last or not runs_asynchronously(scheduled, traits):
        return temporaries
    gathered: dict[int, tuple[int, int]] = {}  # the last of several has the whole value
    for item, *_ in scheduled.steps:
        if isinstance(item, Reshard) and gathers_into_donated(item, facts):
            value, times = item.target.value, memory.regions.moves(item.op, item.target.value)
            gathered[value.id] = item.target.nbytes, times
    if not gathered:
        return temporaries
    on_chip = traits.vmem_resident_fraction * memory.curve.vmem_bytes
    total = sum(size * times for size, times in gathered.values())
    extra = temporaries.bytes_at.copy()
    extra[len(scheduled.members) - 1] += total - min(max(gathered.values())[0], on_chip)
    return dataclasses.replace(temporaries, bytes_at=extra)
