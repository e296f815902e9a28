"""Numbers read by the ticks of a pipeline: microbatches and slots by tick and stage."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from partir_search.ir.pipeline_schedule import BACKWARD, Phase
from partir_search.ir.pipeline_slots import Slots
from partir_search.ir.pipeline_table import PipelineTable

LIVE = f"live_{BACKWARD}"


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class TickRows:
    """Numbers of the ticks of one loop.

    Attributes:
      arrays: by name, [ticks, stages] or [ticks] numbers: `microbatch_F`, `chunk_F` and `slot_F` of
        each stage (likewise B and W), the slots `waiting_B` and `waiting_W` of values between
        the two, and the microbatch of the `entry`, the `head` and the `exit`. A tick without an
        item has the number of another.
      flags: by name, True for an item: `entry_valid`, `head_valid` and `exit_valid` [ticks],
        `live_B`, `writes_F` and `writes_B` [ticks, stages]. Absent if all are true; flags of slots
        also if all slots written without an item are free. `last_valid` [ticks] is False for
        an item of the last stage in a chunk before the last.
      passes: True if in every tick the last stage has an item of B in a chunk before the last,
        whose cotangents arrive from the first stage.
    """

    arrays: Mapping[str, Any]
    flags: Mapping[str, Any]
    passes: bool


def tick_rows(table: PipelineTable, phase: Phase) -> TickRows:
    """Numbers of the ticks of a loop."""
    ticks = slice(phase.start, phase.stop)
    arrays: dict[str, Any] = {}
    flags: dict[str, Any] = {}
    writes: dict[str, Any] = {}
    for kind in phase.kinds:
        numbers = table.microbatch(kind)[:, ticks].T
        arrays[f"microbatch_{kind}"] = np.maximum(numbers, 0)
        if kind == BACKWARD and (numbers < 0).any():
            flags[LIVE] = numbers >= 0
        arrays[f"chunk_{kind}"] = np.maximum(table.chunk(kind)[:, ticks].T, 0)
        for name, slots in (("slot", table.residuals), ("waiting", table.cotangents)):
            if slots is None or kind not in slots.at:
                continue
            at = slots.at[kind]
            if kind == next(iter(slots.at)):
                at, overwritten = _written(table, slots)
                if overwritten[:, ticks].any():
                    writes[f"writes_{kind}"] = numbers >= 0
            arrays[f"{name}_{kind}"] = np.maximum(at[:, ticks].T, 0)
    places = {"entry": table.entries(), "head": table.heads(), "exit": table.exits()}
    for name, found in places.items():
        numbers = np.array([found.get(t, -1) for t in range(phase.start, phase.stop)], np.int32)
        if (numbers >= 0).any():
            arrays[name] = np.maximum(numbers, 0)
            if (numbers < 0).any():
                flags[f"{name}_valid"] = numbers >= 0
    passes = False
    if BACKWARD in phase.kinds:
        chunks = table.chunk(BACKWARD)[-1, ticks]
        earlier = (chunks >= 0) & (chunks < table.schedule.chunks - 1)
        passes = bool(earlier.all())
        if earlier.any() and not passes:
            flags["last_valid"] = ~earlier
    flags |= writes
    return TickRows(arrays, flags, passes)


def _written(table: PipelineTable, written: Slots) -> tuple[Any, Any]:
    """[stage, tick] slots written, and True for a slot in use, written without an item.

    Without an item, a stage writes to a free slot of the tick, if any.
    """
    slots = next(iter(written.at.values())).copy()
    overwritten = np.zeros(slots.shape, bool)
    for stage in range(slots.shape[0]):
        free = _free_ticks(table, written, stage)
        for tick in np.flatnonzero(slots[stage] < 0):
            places = np.flatnonzero(free[:, tick])
            slots[stage, tick] = places[0] if len(places) else 0
            overwritten[stage, tick] = not len(places)
    return slots, overwritten


def _free_ticks(table: PipelineTable, slots: Slots, stage: int) -> Any:
    """[slot, tick] True where a slot of a stage is free."""
    writer, *_, last = slots.at
    writes = slots.at[writer][stage]
    free = np.ones((slots.count, writes.size), bool)
    items = {item: tick for tick, item in table.work[last][stage].items()}
    for tick, item in table.work[writer][stage].items():
        free[writes[tick], tick : items[item] + 1] = False
    return free
