"""Tactic of pipeline parallelism."""

from __future__ import annotations

import dataclasses
from typing import Literal

from partir_search.ir.pipeline_schedule import PipelineSchedule
from partir_search.messages import validators
from partir_search.passes.pipeline.form import PipelineForm
from partir_search.passes.pipeline.module import stage_carries
from partir_search.planning.parallelism import Parallelism
from partir_search.propagation.actions import Action, Tile
from partir_search.propagation.graph import Graph
from partir_search.propagation.state import State
from partir_search.strategies.targets import StrategyTargets


@dataclasses.dataclass(frozen=True)
class Pipeline(Parallelism):
    """Runs the layers as stages of a pipeline over microbatches.

    The batch is cut into microbatches; each stage holds an equal part of the layers, computes one
    microbatch in a tick, and passes its activations on. Results equal those of the whole batch.
    Embedding, head and optimizer may be tiled on the axis like on any other. First in a schedule.

    Attributes:
      axis: axis of the mesh.
      microbatches: parts of the batch; more of them leave stages idle for less of the step.
      chunks: parts of the layers on a stage, run in turn; more of them leave stages idle for less.
      schedule: "1f1b" begins the backward pass of a microbatch as soon as its forward pass ends;
        "gpipe" runs all forward passes first.

    Source: Huang et al., GPipe (NeurIPS 2019); Narayanan et al. (SC 2021).
    """

    axis: str
    microbatches: int
    chunks: int = 1
    schedule: Literal["1f1b", "gpipe"] = "1f1b"

    def __post_init__(self) -> None:
        validators.text("Pipeline: axis", self.axis, "'stage'")
        validators.whole_number("Pipeline: microbatches", self.microbatches, 2)
        validators.whole_number("Pipeline: chunks", self.chunks, 1)
        PipelineSchedule(2, 2 * self.microbatches, 1, self.schedule)  # checks the name

    @property
    def axis_names(self) -> tuple[str, ...]:
        return (self.axis,)

    def form(self, stages: int) -> PipelineForm:
        """Form for a number of stages."""
        return PipelineForm(self.axis, stages, self.chunks, self.schedule)

    def actions(self, graph: Graph, state: State, targets: StrategyTargets) -> list[Action]:
        """Tiles the stages on the axis."""
        return tile_stages(graph, state, self.axis)


def tile_stages(graph: Graph, state: State, axis: str) -> list[Action]:
    """Tiles the stages of a program on an axis; returns the actions."""
    axes, done = state.mesh.axes(axis), list[Action]()
    for value in stage_carries(graph.module.body.ops):
        cls = graph.class_of[value.id]
        if any(state.tiles[a][cls] != 0 for a in axes):
            done.append(Tile(value.name, 0, axis))
            done[-1].apply(state)
    return done
