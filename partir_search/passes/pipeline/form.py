"""Form of a pipeline in saved plans: mesh axis of the stages, chunks and schedule."""

from __future__ import annotations

import dataclasses

from partir_search.ir.pipeline_schedule import ONE_F_ONE_B, PipelineSchedule

ALL = 1000  # ops of a layer that run again: all


@dataclasses.dataclass(frozen=True, slots=True)
class PipelineForm:
    """Pipeline of the layers of a program over microbatches.

    Attributes:
      axis: mesh axis of the stages.
      stages: size of the axis.
      chunks: parts of the layers on a stage.
      schedule: one of `ir.pipeline_schedule.SCHEDULES`.
      again: number of ops of a layer written out repeated by the backward pass besides attention,
        makers of the largest residuals first.
      spared: share of the bytes of a layer's residuals that are not stored, at least: the `again`
        ops are those of the fewest operations. 0 for the largest residuals first. Attention runs
        again if either is not 0.
      split_backward: True if products of gradients of weights are deferred.
      staged_state: True if the train state of layers lies by stage between steps.
    """

    axis: str
    stages: int
    chunks: int = 1
    schedule: str = ONE_F_ONE_B
    again: int = 0
    split_backward: bool = False
    staged_state: bool = False
    spared: float = 0.0

    def __str__(self) -> str:
        chunks = f" of {self.chunks} chunks each" if self.chunks > 1 else ""
        again = f", {self.again} op{'s' * (self.again > 1)} of a layer again" if self.again else ""
        again = again or ", attention again" * (self.spared > 0)
        split = ", split backward" if self.split_backward else ""
        how = self.schedule + split + again + (", state by stage" if self.staged_state else "")
        return f"{self.stages} stages{chunks} on {self.axis!r} ({how})"

    def timetable(self, microbatches: int) -> PipelineSchedule:
        """Schedule for a number of microbatches."""
        numbers = self.stages, microbatches, self.chunks
        return PipelineSchedule(*numbers, self.schedule, self.split_backward)
