"""Lockstep schedules of pipelines: the items of work by device and tick.

A model of `chunks * stages` equal parts runs on `stages` devices: part `chunk * stages + device` is
chunk `chunk` of the device. Items of work are the forward pass F and the backward pass B of one
chunk for one microbatch, and W, its gradients of weights, if B leaves these out. In a tick every
device runs the same kinds of work, masked without an item: no device branches. Work item n of a
device is linear in device and tick, like the slices of a ring. What a device sends in a tick is
used by its neighbour in the next, so no arrival waits.

The schedule is one of:

  1f1b   B of a microbatch begins in the tick of its last F (Narayanan et al., SC 2021; with chunks
         the interleaved schedule of that paper).
  gpipe  All F, then all B (Huang et al., NeurIPS 2019).
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple

FORWARD, BACKWARD, WEIGHTS = KINDS = "F", "B", "W"
ONE_F_ONE_B, GPIPE = SCHEDULES = "1f1b", "gpipe"
# Seconds of kinds in units of F: gradients of operands and of weights cost one forward pass each.
UNIT_SECONDS = {FORWARD: 1.0, BACKWARD: 2.0, WEIGHTS: 0.0}
UNIT_SECONDS_SPLIT = {FORWARD: 1.0, BACKWARD: 1.0, WEIGHTS: 1.0}


class Item(NamedTuple):
    """One kind of work of one chunk for one microbatch."""

    chunk: int
    microbatch: int


class Phase(NamedTuple):
    """Ticks from `start` to before `stop` in which devices run the same `kinds` of work."""

    kinds: str
    start: int
    stop: int

    @property
    def ticks(self) -> int:
        return self.stop - self.start


@dataclasses.dataclass(frozen=True, slots=True)
class PipelineSchedule:
    """Lockstep schedule of a pipeline.

    Attributes:
      stages: devices along the pipelined axis, at least 2.
      microbatches: parts of the batch; a multiple of `stages` if `chunks` is above 1.
      chunks: parts of the model on a device.
      schedule: one of `SCHEDULES`.
      split: gradients of weights are items of their own, W; B is the gradients of operands.
      stacks: stacks of layers run one after the other by the same devices, each with a schedule of
        its own: an encoder and a decoder.
      place: number of the stack. F of a stack follows F of all earlier ones, B precedes theirs.

    Raises:
      ValueError: a number out of range, or an unknown schedule.
    """

    stages: int
    microbatches: int
    chunks: int = 1
    schedule: str = ONE_F_ONE_B
    split: bool = False
    stacks: int = 1
    place: int = 0

    def __post_init__(self) -> None:
        for name, least in (("stages", 2), ("microbatches", 1), ("chunks", 1)):
            value: Any = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ValueError(f"{name}={value!r} of a pipeline is no integer from {least} up")
        if self.schedule not in SCHEDULES:
            known = " or ".join(map(repr, SCHEDULES))
            raise ValueError(f"schedule={self.schedule!r} of a pipeline is not {known}")
        if self.chunks > 1 and self.microbatches % self.stages:
            raise ValueError(
                f"{self.microbatches} microbatches of a pipeline with {self.chunks} chunks are no"
                f" multiple of its {self.stages} stages"
            )

    @property
    def kinds(self) -> tuple[str, ...]:
        return KINDS if self.split else (FORWARD, BACKWARD)

    @property
    def items(self) -> int:
        """Items of one kind on a device."""
        return self.microbatches * self.chunks

    @property
    def ticks(self) -> int:
        last = 2 * (self.stacks - 1) * self.through  # of all stacks, before B of the first
        return (
            dataclasses.replace(self, stacks=1, place=0)._first(BACKWARD)
            + last
            + (self.items + self.stages - 1)
        )

    @property
    def through(self) -> int:
        """Ticks from the first chunk of a microbatch on the first device to the last on the last.

        A microbatch begins with the next stack in the tick in which it ends with a stack.
        """
        return self.chunks * self.stages - 1

    def _first(self, kind: str) -> int:
        """First tick with work of a kind on any device."""
        if kind == FORWARD:
            return self.place * self.through
        all_forward = self.items + self.stages - 1
        first = all_forward if self.schedule == GPIPE else self.through
        first += (2 * self.stacks - 2 - self.place) * self.through
        return first + (self.stages - 1 if kind == WEIGHTS else 0)

    def delay(self, kind: str, device: int) -> int:
        """Tick of a device's item 0 of a kind; item n is n ticks later."""
        if kind == WEIGHTS:
            return self._first(kind)
        return self._first(kind) + (device if kind == FORWARD else self.stages - 1 - device)

    def item(self, kind: str, device: int, tick: int) -> Item | None:
        """Work of a kind on a device in a tick, or None."""
        number = tick - self.delay(kind, device)
        if kind not in self.kinds or not 0 <= number < self.items:
            return None
        if self.chunks == 1:
            return Item(0, number)
        rest, place = divmod(number, self.stages)
        group, chunk = divmod(rest, self.chunks)
        at = chunk if kind == FORWARD else self.chunks - 1 - chunk
        return Item(at, group * self.stages + place)

    def phases(self) -> tuple[Phase, ...]:
        """Runs of ticks with equal kinds of work; F, then FB, then B for `1f1b`."""
        last = self.items + self.stages - 1
        spans = {k: (self._first(k), last) for k in self.kinds}
        if self.split:
            spans[WEIGHTS] = (self._first(WEIGHTS), self.items)
        ends = {k: first + ticks for k, (first, ticks) in spans.items()}
        cuts = sorted({first for first, _ in spans.values()} | set(ends.values()))
        return tuple(
            Phase("".join(k for k in self.kinds if spans[k][0] <= a < ends[k]), a, b)
            for a, b in itertools.pairwise(cuts)
        )

    def pairs(self, kind: str) -> tuple[tuple[int, int], ...]:
        """(source, target) devices of the results of F or B; () for W.

        The edge between last and first device is there only with chunks: without, device 0 reads
        the entry and the last device the head.
        """
        if kind == WEIGHTS:
            return ()
        edges = [(s, (s + 1) % self.stages) for s in range(self.stages)]
        edges = edges if self.chunks > 1 else edges[:-1]
        return tuple(edges if kind == FORWARD else [(b, a) for a, b in edges])

    def in_flight(self, device: int = 0) -> int:
        """Most (chunk, microbatch) items of a device from F to the end of B, or of W if split off.

        Device 0 has the most: min(m v, p v + p - 1) for `1f1b`, in stage-microbatches (divided by
        chunks) min(m, p + (p - 1) / v); m v for `gpipe`. Each later stack adds 2 (v p - 1) items.
        """
        if self.schedule == GPIPE:
            return self.items
        fewer = device if self.split else 2 * device  # W ends on all devices in the same tick
        later = 2 * (self.stacks - 1 - self.place) * self.through
        return min(self.items, (self.chunks + 1) * self.stages - 1 - fewer + later)

    def waiting(self) -> int:
        """Most (chunk, microbatch) items of a device between B and W; 0 unless W is split off.

        The last device has the most: its B is p - 1 ticks before W.
        """
        return min(self.items, self.stages) if self.split else 0

    def seconds(self, of_kind: Mapping[str, float] | None = None) -> float:
        """Seconds of all ticks.

        Args:
          of_kind: seconds of one item of each kind; `UNIT_SECONDS` in units of F without.
        """
        costs = of_kind or self.unit_seconds
        return sum(p.ticks * sum(costs[k] for k in p.kinds) for p in self.phases())

    def idle_fraction(self, of_kind: Mapping[str, float] | None = None) -> float:
        """Share of the seconds without an item: (p - 1) / (v m + p - 1) unless W is split off.

        Args:
          of_kind: seconds of one item of each kind; `UNIT_SECONDS` in units of F without.
        """
        costs = of_kind or self.unit_seconds
        return 1 - self.items * sum(costs[k] for k in self.kinds) / self.seconds(costs)

    @property
    def unit_seconds(self) -> Mapping[str, float]:
        """Seconds of one item of each kind in units of F."""
        return UNIT_SECONDS_SPLIT if self.split else UNIT_SECONDS

    def index(self, kind: str, stage: str = "stage", tick: str = "t") -> str:
        """Item of a kind as text in `%stage` and `%t`, as printed programs show it."""
        sign = "-" if kind == FORWARD else "+"
        start = self.delay(kind, 0)
        number = f"%{tick}" + (f" - {start}" if start else "")
        number += "" if kind == WEIGHTS else f" {sign} %{stage}"
        if self.chunks == 1:
            return f"%mb = {number}"
        p, v = self.stages, self.chunks
        chunk = f"(%n div {p}) mod {v}"
        chunk = chunk if kind == FORWARD else f"{v - 1} - {chunk}"
        return f"%n = {number}, %mb = {p}*(%n div {p * v}) + %n mod {p}, %chunk = {chunk}"
