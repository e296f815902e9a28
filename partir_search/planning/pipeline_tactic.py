"""Tactic of pipeline parallelism."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal

from partir_search.ir.mesh import MeshShape
from partir_search.ir.pipeline_schedule import PipelineSchedule
from partir_search.ir.rule import NONE
from partir_search.messages import validators
from partir_search.passes.pipeline.form import PipelineForm
from partir_search.plan.rewrites import Rewrites
from partir_search.planning.parallelism import Parallelism
from partir_search.propagation.actions import Action
from partir_search.propagation.contradictions import IllegalAction
from partir_search.propagation.graph import Graph
from partir_search.propagation.state import State
from partir_search.strategies.moves import Strategy, TileStages
from partir_search.strategies.targets import StrategyTargets


@dataclasses.dataclass(frozen=True)
class Pipeline(Parallelism):
    """Runs the layers as stages of a pipeline over microbatches.

    The batch is cut into microbatches; each stage holds an equal part of the layers, computes one
    microbatch in a tick, and passes its activations on. Results equal those of the whole batch.
    Embedding, head and optimizer may be tiled on the axis like on any other. First in a schedule.

    Numbers left open are chosen: every axis, number of microbatches and of chunks that divides is
    ranked by closed forms, and the best few are planned in full.

    Attributes:
      axis: axis of the mesh. None: chosen, and planning may leave the pipeline out.
      microbatches: parts of the batch; more of them leave stages idle for less of the step. None:
        chosen.
      chunks: parts of the layers on a stage, run in turn; more of them leave stages idle for less.
        None: chosen; 1 if stages do not divide the layers.
      schedule: "1f1b" begins the backward pass of a microbatch as soon as its forward pass ends;
        "gpipe" runs all forward passes first.
      split_backward: True passes gradients of a layer's operands on first; products that only
        gradients of weights need run in a tick without idle stages. None: chosen if the
        microbatches are, else False.
      optional: True lets planning leave the pipeline out: every optional pipeline of a schedule is
        planned, and the program without one, and the best plan is taken.
      staged_state: True keeps the train state of layers with their stages between steps, to save
        all_to_alls of parameters and gradients in every step. Convert with `plan.skew` before the
        first step, with `plan.unskew` for checkpoints.

    Source: Huang et al., GPipe (NeurIPS 2019); Narayanan et al. (SC 2021); Qi et al., Zero Bubble
    Pipeline Parallelism (ICLR 2024).
    """

    axis: str | None = None
    microbatches: int | None = None
    chunks: int | None = None
    schedule: Literal["1f1b", "gpipe"] = "1f1b"
    split_backward: bool | None = None
    optional: bool = False
    staged_state: bool = False

    def __post_init__(self) -> None:
        if self.axis is not None:
            validators.text("Pipeline: axis", self.axis, "'stage'")
        if self.microbatches is not None:
            validators.whole_number("Pipeline: microbatches", self.microbatches, 2)
        if self.chunks is not None:
            validators.whole_number("Pipeline: chunks", self.chunks, 1)
        if self.split_backward is not None:
            validators.flag("Pipeline: split_backward", self.split_backward)
        validators.flag("Pipeline: optional", self.optional)
        validators.flag("Pipeline: staged_state", self.staged_state)
        PipelineSchedule(2, 4, 1, self.schedule)  # checks the name

    @property
    def open(self) -> bool:
        """True if the axis, the number of microbatches or of chunks is to be chosen."""
        return not self.placed or self.chunks is None

    @property
    def placed(self) -> bool:
        """True if the axis and the number of microbatches are given."""
        return self.axis is not None and self.microbatches is not None

    @property
    def may_be_left_out(self) -> bool:
        """True if the plan without the pipeline competes."""
        return self.optional or self.axis is None

    @property
    def competes(self) -> bool:
        """True if several pipelines, or the plan without one, are planned."""
        return self.open or self.may_be_left_out

    @property
    def axis_names(self) -> tuple[str, ...]:
        return () if self.axis is None else (self.axis,)

    def loop(self, mesh: MeshShape, again: int = 0) -> Rewrites:
        """Rewrites of a program for a pipeline with all numbers.

        Args:
          mesh: mesh of the axis.
          again: number of ops of a layer that the backward pass repeats.
        """
        assert self.axis is not None
        assert self.microbatches is not None
        stages = mesh.size(mesh.axes(self.axis))
        if stages < 2:
            raise ValueError(
                f"Pipeline({self.axis!r}): the mesh has one device along {self.axis!r}, and a"
                " pipeline two stages or more"
            )
        split = bool(self.split_backward)
        numbers = self.axis, stages, self.chunks or 1, self.schedule, again, split
        form = PipelineForm(*numbers, staged_state=self.staged_state)
        return Rewrites(microbatches=self.microbatches, pipeline=(form,))

    def strategies(self, mesh: MeshShape) -> Sequence[Strategy]:
        assert self.axis is not None
        return (TileStages(mesh.axes(self.axis)),)

    def actions(self, graph: Graph, state: State, targets: StrategyTargets) -> list[Action]:
        assert self.axis is not None
        axes = state.mesh.axes(self.axis)
        taken = [c for c in targets.stages for a in axes if state.tiles[a][c] not in (NONE, 0)]
        if taken:
            raise IllegalAction(
                f"Pipeline: a given sharding or an earlier tactic tiles microbatches on axis"
                f" {self.axis!r}, the axis of the stages; tile the batch on another axis, and begin"
                " the schedule with Pipeline"
            )
        return super().actions(graph, state, targets)
