"""Tables of pipelines: per device and tick the chunk, the microbatch and the slots."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from partir_search.ir.pipeline_schedule import (
    BACKWARD,
    FORWARD,
    WEIGHTS,
    Item,
    PipelineSchedule,
)
from partir_search.ir.pipeline_slots import Numbers, Slots, as_arrays, slots_of

Work = tuple[Mapping[int, Item], ...]  # per device, the item of each tick with one


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class PipelineTable:
    """Table of a lockstep pipeline: everything that a device knows by its number and the tick.

    Attributes:
      schedule: stages, microbatches, chunks and kind of schedule.
      work: by kind and device, the item of each tick with one.
      residuals: slots written by F, read by B and, if split off, by W.
      cotangents: slots written by B and read by W; None if W is not split off.
    """

    schedule: PipelineSchedule
    work: Mapping[str, Work]
    residuals: Slots
    cotangents: Slots | None = None

    def item(self, kind: str, device: int, tick: int) -> Item | None:
        """Work of a kind on a device in a tick, or None."""
        return self.work[kind][device].get(tick)

    def chunk(self, kind: str) -> Numbers:
        """Chunk of a kind by [device, tick]; -1 without an item."""
        return as_arrays(self.schedule, {kind: self.work[kind]}, "chunk")[kind]

    def microbatch(self, kind: str) -> Numbers:
        """Microbatch of a kind by [device, tick]; -1 without an item."""
        return as_arrays(self.schedule, {kind: self.work[kind]}, "microbatch")[kind]

    def entries(self) -> dict[int, int]:
        """Microbatches that enter, by tick: the operands of device 0 and chunk 0."""
        return self._at(FORWARD, 0, 0)

    def heads(self) -> dict[int, int]:
        """Microbatches whose loss is due, by tick.

        The head lies before B of the last device's last chunk. For `1f1b` F of the same item is in
        the same tick; for `gpipe` the results of F wait in their slot of the residuals.
        """
        return self._at(BACKWARD, self.schedule.stages - 1, self.schedule.chunks - 1)

    def exits(self) -> dict[int, int]:
        """Microbatches that leave, by tick: the gradient of the entry follows B of chunk 0."""
        return self._at(BACKWARD, 0, 0)

    def _at(self, kind: str, device: int, chunk: int) -> dict[int, int]:
        work = self.work[kind][device]
        return {t: item.microbatch for t, item in work.items() if item.chunk == chunk}

    def faults(self) -> list[str]:
        """Messages on faults of the table; [] if it computes the step.

        Every item is run once; an operand arrives in the tick that uses it; B is not before F and W
        not before B; slots hold what is read from them and are written when free.
        """
        found = [text for kind in self.schedule.kinds for text in self._not_once(kind)]
        if found:
            return found
        ticks = {
            kind: [{item: t for t, item in work.items()} for work in self.work[kind]]
            for kind in self.schedule.kinds
        }
        for kind in (FORWARD, BACKWARD):
            found += self._late(kind, ticks[kind])
        for first, then in ((FORWARD, BACKWARD), (BACKWARD, WEIGHTS)):
            for device, done in enumerate(ticks.get(then, ())):
                found += [
                    f"{then} of {item} on device {device} in tick {t} is before {first}"
                    for item, t in done.items()
                    if t < ticks[first][device][item]
                ]
        return found + [text for slots in self._slots() for text in slots.faults(self.work)]

    def _slots(self) -> list[Slots]:
        return [self.residuals, *([self.cotangents] if self.cotangents else [])]

    def _not_once(self, kind: str) -> list[str]:
        """Messages on items of a kind that devices run never, twice or in no tick of the table."""
        chunks, microbatches = range(self.schedule.chunks), range(self.schedule.microbatches)
        wanted = sorted(Item(c, j) for c in chunks for j in microbatches)
        found = []
        for device, work in enumerate(self.work[kind]):
            if sorted(work.values()) != wanted:
                found.append(f"some item of {kind} on device {device} is run never or twice")
            if not set(work) <= set(range(self.schedule.ticks)):
                found.append(f"some item of {kind} on device {device} is in no tick")
        return found

    def _late(self, kind: str, ticks: Sequence[Mapping[Item, int]]) -> list[str]:
        """Messages on operands that arrive before or after the tick of their use."""
        found = []
        stages, chunks = self.schedule.stages, self.schedule.chunks
        step = 1 if kind == FORWARD else -1
        for device, done in enumerate(ticks):
            for item, tick in done.items():
                part = item.chunk * stages + device - step
                if not 0 <= part < stages * chunks:
                    continue  # from the entry or the head
                source = Item(part // stages, item.microbatch)
                arrives = ticks[part % stages][source] + 1
                if arrives != tick:
                    found.append(
                        f"{kind} of {item} on device {device} is in tick {tick}; its operand"
                        f" arrives in tick {arrives}"
                    )
        return found


def pipeline_table(schedule: PipelineSchedule) -> PipelineTable:
    """Table of a schedule."""
    work = {
        kind: tuple(
            {t: item for t in range(schedule.ticks) if (item := schedule.item(kind, device, t))}
            for device in range(schedule.stages)
        )
        for kind in schedule.kinds
    }
    if not schedule.split:
        return PipelineTable(schedule, work, slots_of(schedule, work, schedule.kinds))
    return PipelineTable(
        schedule,
        work,
        slots_of(schedule, work, schedule.kinds),
        slots_of(schedule, work, (BACKWARD, WEIGHTS)),
    )
