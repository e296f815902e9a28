"""Evaluations of a program under decisions: device-local program and cost, at once or on demand."""

from __future__ import annotations

import dataclasses
from typing import Protocol

from partir_search.ir.core import Module
from partir_search.ir.mesh import MeshShape
from partir_search.lowering.local_ir import LocalProgram
from partir_search.propagation.graph import Graph
from partir_search.simulator.cost import Cost
from partir_search.simulator.simulator import CostModel


class Evaluation(Protocol):
    """A program under decisions, as read by a plan."""

    @property
    def module(self) -> Module:
        """The program."""

    @property
    def mesh(self) -> MeshShape:
        """The mesh, with diagonals and sub-axes."""

    @property
    def graph(self) -> Graph:
        """Propagation graph of the program."""

    @property
    def sketch(self) -> LocalProgram:
        """The device-local program without the ops that need no communication."""

    @property
    def model(self) -> CostModel:
        """The cost model."""

    @property
    def cost(self) -> Cost:
        """Simulated cost per step on one device."""

    @property
    def most_peak_bytes(self) -> float:
        """Upper bound of the simulated peak, in bytes on one device."""


@dataclasses.dataclass(frozen=True, eq=False)
class Evaluated:
    """Evaluation made at once.

    Attributes:
      graph, sketch, model, cost: as in `Evaluation`.
    """

    graph: Graph
    sketch: LocalProgram
    model: CostModel
    cost: Cost

    @property
    def module(self) -> Module:
        return self.graph.module

    @property
    def mesh(self) -> MeshShape:
        return self.sketch.partition.mesh

    @property
    def most_peak_bytes(self) -> float:
        return self.cost.peak_bytes
