"""Slots of pipelines: places of a device for what waits between two kinds of work."""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from partir_search.ir.pipeline_schedule import Item, PipelineSchedule

Numbers = npt.NDArray[np.int32]  # [stages, ticks]; -1 for none


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Slots:
    """Places for the blocks that one kind of work writes and later kinds read.

    Attributes:
      count: slots of every device.
      at: by kind of work, the slot that a device writes or reads in a tick. The first kind writes;
        the last reader frees a slot after its tick.
    """

    count: int
    at: Mapping[str, Numbers]

    def faults(self, items: Mapping[str, Sequence[Mapping[int, Item]]]) -> list[str]:
        """Messages on reads of blocks that are absent and on writes to slots in use.

        Args:
          items: by kind and device, the item of each tick with one.
        """
        found: list[str] = []
        writer, *readers = self.at
        for device in range(len(items[writer])):
            held: dict[int, Item] = {}
            for tick in range(self.at[writer].shape[1]):
                for kind in self.at:
                    item = items[kind][device].get(tick)
                    slot = int(self.at[kind][device, tick])
                    about = f"{kind} of device {device} in tick {tick}"
                    if item is None:
                        continue
                    if not 0 <= slot < self.count:
                        found.append(f"{about} has slot {slot} of {self.count}")
                    elif kind == writer:
                        if slot in held:
                            found.append(f"{about} writes slot {slot}, which {held[slot]} holds")
                        held[slot] = item
                    elif held.get(slot) != item:
                        found.append(f"{about} reads {item} from slot {slot}: {held.get(slot)}")
                    elif kind == readers[-1]:
                        del held[slot]
        return found


def slots_of(
    schedule: PipelineSchedule,
    items: Mapping[str, Sequence[Mapping[int, Item]]],
    kinds: Sequence[str],
) -> Slots:
    """The fewest slots, by linear scan over the ticks of each device.

    Args:
      items: by kind and device, the item of each tick with one.
      kinds: the kind that writes, then those that read, the last reader last.
    """
    shape = (schedule.stages, schedule.ticks)
    at = {k: np.full(shape, -1, np.int32) for k in kinds}
    count = 0
    for device in range(schedule.stages):
        ticks: dict[str, dict[Item, int]] = {
            k: {item: t for t, item in items[k][device].items()} for k in kinds
        }
        free: list[int] = []
        busy: list[tuple[int, int]] = []  # tick of the last reader, slot
        used = 0
        for tick, item in sorted(items[kinds[0]][device].items()):
            while busy and busy[0][0] < tick:
                heapq.heappush(free, heapq.heappop(busy)[1])
            if free:
                slot = heapq.heappop(free)
            else:
                slot, used = used, used + 1
            heapq.heappush(busy, (ticks[kinds[-1]][item], slot))
            for kind in kinds:
                at[kind][device, ticks[kind][item]] = slot
        count = max(count, used)
    return Slots(count, at)


def as_arrays(
    schedule: PipelineSchedule, items: Mapping[str, Sequence[Mapping[int, Item]]], field: str
) -> dict[str, Numbers]:
    """By kind, a field of the items as an array; -1 without an item."""
    found: dict[str, Numbers] = {}
    for kind, devices in items.items():
        found[kind] = np.full((schedule.stages, schedule.ticks), -1, np.int32)
        for device, work in enumerate(devices):
            for tick, item in work.items():
                value: Any = getattr(item, field)
                found[kind][device, tick] = value
    return found
