"""Pipelines: idle share, seconds and bytes of a lockstep schedule."""

from __future__ import annotations

import dataclasses

from partir_search.ir.pipeline_schedule import (
    BACKWARD,
    FORWARD,
    ONE_F_ONE_B,
    WEIGHTS,
    PipelineSchedule,
)


def idle_fraction(stages: int, microbatches: int, chunks: int = 1) -> float:
    """Idle share of a pipeline's seconds: (p - 1) / (v k + p - 1).

    Lecture, "Idle Time & MFU": p / (p + k), which is 1/4 for k = 3 p; exactly (p - 1) / (4 p - 1).
    Chunks divide the bubble (Narayanan et al. 2021).

    Args:
      stages / microbatches / chunks: p, k and v, chunks of the model on a device.
    """
    return (stages - 1) / (chunks * microbatches + stages - 1)


def serial_factor(stages: int, microbatches: int) -> float:
    """Serial steps of a pipeline in units of one pass through the model: (k + p - 1) / p.

    Lecture, "Scaling Considerations": "a serial factor of 3" over one microbatch alone, for k = 3
    p. Exactly 4 - 1 / p; 3 is the excess over one.
    """
    return (microbatches + stages - 1) / stages


def in_flight(
    stages: int, microbatches: int, chunks: int = 1, schedule: str = ONE_F_ONE_B
) -> float:
    """Microbatches whose activations the fullest device keeps, in units of a whole stage.

    Lecture, "The pipeline approach": all k are checkpointed (GPipe). With `1f1b` in lockstep
    min(k, p + (p - 1) / v).
    """
    return PipelineSchedule(stages, microbatches, chunks, schedule).in_flight() / chunks


@dataclasses.dataclass(frozen=True, slots=True)
class StageSeconds:
    """Seconds of one stage, all chunks together, for one microbatch.

    Attributes:
      forward / backward: products and exposed collectives; `backward` is the gradients of operands
        if the schedule splits off `weights`.
      weights: gradients of weights, if split off.
      accumulate: adding a microbatch's gradients to the sums.
      head: last norm, head and loss, forward and backward, on all devices.
      send_forward / send_backward: permute of a microbatch's activations, or of their gradients, to
        a neighbour; not divided by chunks.
    """

    forward: float
    backward: float
    weights: float = 0.0
    accumulate: float = 0.0
    head: float = 0.0
    send_forward: float = 0.0
    send_backward: float = 0.0


def pipeline_seconds(schedule: PipelineSchedule, stage: StageSeconds) -> float:
    """Seconds of all ticks of a lockstep pipeline; without the optimizer.

    Not in the lecture. A tick runs F, the head if a microbatch has reached the end, B and W, in
    this order, on all devices. Results of F are sent behind the head, B and W of the tick, those of
    B behind the accumulation and W. A tick ends with its last permute; permutes of a device follow
    one another on its link. With hidden permutes and no accumulation the sum is
    (m + (p - 1) / v) (F + B) + m head, and m W more if W is split off: no device waits with W.
    """
    heads = _ticks_with_heads(schedule)
    total = 0.0
    for phase in schedule.phases():
        with_head = heads.get(phase.kinds, 0)
        total += with_head * tick_seconds(schedule, stage, phase.kinds, head=True)
        total += (phase.ticks - with_head) * tick_seconds(schedule, stage, phase.kinds)
    return total


def tick_seconds(
    schedule: PipelineSchedule, stage: StageSeconds, kinds: str, *, head: bool = False
) -> float:
    """Seconds of one tick that runs some kinds of work, and the head of a microbatch or none.

    Args:
      kinds: of a phase of the schedule, such as "FB".
    """
    v = schedule.chunks
    forward = stage.forward / v if FORWARD in kinds else 0.0
    backward = stage.backward / v if BACKWARD in kinds else 0.0
    between = backward + (stage.head if head else 0.0)
    after = stage.weights / v if WEIGHTS in kinds else 0.0
    after += stage.accumulate / v if schedule.kinds[-1] in kinds else 0.0
    late = max(0.0, stage.send_forward - between) if FORWARD in kinds else 0.0
    late += stage.send_backward if BACKWARD in kinds else 0.0
    return forward + between + max(after, late)


def _ticks_with_heads(schedule: PipelineSchedule) -> dict[str, int]:
    """Number of ticks with a head, by the kinds of work of the phase."""
    found: dict[str, int] = {}
    first = schedule.delay(BACKWARD, schedule.stages - 1)
    for phase in schedule.phases():
        found[phase.kinds] = _heads_before(schedule, phase.stop - first) - _heads_before(
            schedule, phase.start - first
        )
    return found


def _heads_before(schedule: PipelineSchedule, ticks: int) -> int:
    """Microbatches with their head in the first ticks of B on the last device."""
    p, v = schedule.stages, schedule.chunks
    ticks = min(max(ticks, 0), schedule.items)
    if v == 1:
        return ticks
    groups, rest = divmod(ticks, p * v)
    return groups * p + min(rest, p)


@dataclasses.dataclass(frozen=True, slots=True)
class StageBytes:
    """Bytes of one stage on one device.

    Attributes:
      state: weights, optimizer state and sums of gradients.
      kept: activations of one microbatch for the backward pass of all chunks.
      constant: activations that no microbatch changes: casts of weights, masks.
      working: live within a layer at most.
      waiting: what gradients of weights split off read of one microbatch's gradients of operands,
        all chunks together.
    """

    state: float
    kept: float
    constant: float = 0.0
    working: float = 0.0
    waiting: float = 0.0


def pipeline_bytes(schedule: PipelineSchedule, stage: StageBytes) -> float:
    """Bytes at the peak of the fullest device.

    Lecture, "The pipeline approach": a shard of the model and the checkpoints of the whole batch.
    In lockstep `1f1b` min(k, p + (p - 1) / v) microbatches are kept. Device p - 1 begins with B
    and has the fewest activations, and the most values waiting for W, min(k, p / v) microbatches;
    arrays of all devices are as large as on the fullest.
    """
    kept = schedule.in_flight() / schedule.chunks * stage.kept
    kept += schedule.waiting() / schedule.chunks * stage.waiting
    return stage.state + kept + stage.constant + stage.working
