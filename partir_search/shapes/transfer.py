"""Transfer of a plan's tilings to a program that differs in extents alone, without propagation."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

from partir_search.ir.analysis.deferred_reductions import same_growth
from partir_search.ir.core import Module
from partir_search.ir.mesh import MeshShape
from partir_search.ir.partition import Partition
from partir_search.ir.printer import print_partition
from partir_search.ir.same_structure import SameStructure
from partir_search.lowering.cache import LocalCache
from partir_search.lowering.local_ir import LocalProgram
from partir_search.lowering.localize import localize
from partir_search.plan.pass_record import PassRecord
from partir_search.plan.plan import Plan
from partir_search.plan.planned import Planned
from partir_search.planning.planner import Planner
from partir_search.propagation.graph import Graph
from partir_search.rules.registry import RuleTable
from partir_search.simulator.cost import Cost
from partir_search.simulator.simulator import CostModel

MakePlanner = Callable[[Module], Planner]


def transferred(base: Plan, module: Module, planner_of: MakePlanner) -> Planned | None:
    """The actions of `base` on a program in the same form, evaluated on demand.

    Propagation of the actions would decide the same: it depends on the structure of a program and
    on what axes divide.

    Args:
      base: the plan.
      module: the program, in the form of `base.module`.
      planner_of: function from a form of the program to its planner.

    Returns:
      None if the programs differ in more than extents, or if axes divide other extents.
    """
    partition = base.partition
    rules = list(map(RuleTable(), module.ops))
    devices = math.prod(partition.mesh.sizes)
    same = SameStructure(base.module, module, (partition.rules, rules), devices)
    if not same.holds or not same_growth(partition.analysis, module):
        return None
    most = math.inf if same.grows else base.cost.peak_bytes
    evaluation = Transferred(module, partition, planner_of, most)
    ops = len(module.ops)
    text = functools.partial(_text, evaluation)
    return Planned(
        actions=base.actions,
        evaluation=evaluation,
        cache=LocalCache(base.planned.cache.traits),
        reports=(),
        seconds={},
        searched=(PassRecord("unfold", 0.0, ops, ops, text),),
    )


class Transferred:
    """Evaluation of a program under the tilings of another program, made on demand.

    Attributes:
      module: the program.
    """

    def __init__(
        self, module: Module, base: Partition, planner_of: MakePlanner, most_peak_bytes: float
    ) -> None:
        """The program `module` tiled as in `base`.

        Args:
          most_peak_bytes: upper bound of the peak; infinite if unknown.
        """
        self.module, self._base, self._planner_of = module, base, planner_of
        self._most = most_peak_bytes

    @property
    def mesh(self) -> MeshShape:
        return self._base.mesh

    @functools.cached_property
    def _planner(self) -> Planner:
        return self._planner_of(self.module)

    @property
    def graph(self) -> Graph:
        return self._planner.graph

    @property
    def model(self) -> CostModel:
        return self._planner.model

    @functools.cached_property
    def sketch(self) -> LocalProgram:
        base, graph = self._base, self.graph
        partition = Partition(
            self.module, base.mesh, graph.rules, base.axes, graph.analysis, base.order, base.modes
        )
        return localize(partition, self._planner.cache, sparse=True)

    @functools.cached_property
    def cost(self) -> Cost:
        return self.model.evaluate(self.sketch)

    @property
    def most_peak_bytes(self) -> float:
        return self.cost.peak_bytes if self._most == math.inf else self._most


def _text(evaluation: Transferred) -> str:
    return print_partition(evaluation.sketch.partition, full=True)
