"""Model, machine and numbers of devices that a table of the theory is about."""

from __future__ import annotations

import dataclasses

from partir_search.simulator.target.machine import Machine
from partir_search.theory.links import Link, link_between, link_inside
from partir_search.theory.model_sizes import ModelSizes


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """One training run.

    Attributes:
      devices: in all.
      tokens: of a step.
      tensor: devices of tensor parallelism, within a node.
      stages: devices of a pipeline; 1 for none.
      chunks: of the model on a device of the pipeline.
    """

    model: ModelSizes
    machine: Machine
    devices: int
    tokens: int = 2**24
    tensor: int = 8
    stages: int = 16
    chunks: int = 4

    def __post_init__(self) -> None:
        for name in ("devices", "tokens", "tensor", "stages", "chunks"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is at least 1, not {getattr(self, name)}")
        if self.devices % (self.tensor * self.stages):
            raise ValueError(
                f"{self.devices} devices do not divide into groups of tensor={self.tensor} times"
                f" stages={self.stages}"
            )

    def stage_layers(self, chunks: int) -> int:
        """Layers of a stage; padded if the model does not divide into equal chunks."""
        return -(-self.model.layers // (self.stages * chunks)) * chunks

    @property
    def rate(self) -> float:
        """Attained operations per second of one device in bf16."""
        return self.machine.matmul_flops_per_s("bfloat16")

    @property
    def links(self) -> list[Link]:
        """Links inside of nodes and, if known, between them."""
        between = link_between(self.machine)
        return [link_inside(self.machine), *([between] if between else [])]

    @property
    def far(self) -> Link:
        """Link of data parallelism and pipelines: between nodes, but inside of a slice of a TPU."""
        return self.links[0] if self.machine.torus else self.links[-1]

    @property
    def groups(self) -> int:
        """Groups of data parallelism without a pipeline."""
        return self.devices // self.tensor

    @property
    def pipelines(self) -> int:
        """Groups of data parallelism with one pipeline each."""
        return self.groups // self.stages

    @property
    def microbatches(self) -> int:
        """Sequences of one pipeline, each a microbatch; 0 for fewer sequences than pipelines."""
        return self.tokens // (self.model.sequence * self.pipelines)
