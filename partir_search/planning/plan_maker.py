"""Plans with the figures beside them, from the actions applied to a form of a program."""

from __future__ import annotations

import dataclasses
import functools

from partir_search.constraints.ends import without_ties
from partir_search.plan.context import PlanContext
from partir_search.plan.plan import Plan
from partir_search.plan.spec import PlanSpec
from partir_search.planning.alternatives import Forms, alternatives_of
from partir_search.planning.changes import changes_of
from partir_search.planning.confirm.contenders import near_plans
from partir_search.planning.front.front import FrontFinder
from partir_search.planning.options import Options
from partir_search.planning.plain_bound import bound_without_recomputation
from partir_search.planning.planner_cache import PlannerCache
from partir_search.planning.planner_maker import PlannerMaker
from partir_search.planning.program_forms import program_forms
from partir_search.planning.remedies import remedies_of
from partir_search.planning.stage import Stage
from partir_search.planning.stage_planner import StagePlan, StagePlanner
from partir_search.planning.trace import Traced
from partir_search.simulator.cost import Cost

MAX_OPS_TWICE = 6000  # of a program that is traced again for the figures of another batch


@dataclasses.dataclass(frozen=True)
class PlanMaker:
    """Function from the actions applied to a form of a program to the plan.

    Attributes:
      options: options of `auto_partition`.
      planners: function from a form to its planner.
    """

    options: Options
    planners: PlannerMaker

    def __call__(
        self,
        traced: Traced,
        stage_plan: StagePlan,
        limit: float,
        planner_of: PlannerCache | None = None,
    ) -> Plan:
        """Plan of a form of the program with applied actions.

        Args:
          traced: the traced program.
          stage_plan: the form, and the actions applied to it.
          limit: bytes per device.
          planner_of: function from a form to its planner, for the figures beside the plan; default:
            new planners.
        """
        o, (stage, planned) = self.options, stage_plan
        base = stage.module if stage.base is None else stage.base
        forms = Forms(
            base,
            planner_of or PlannerCache(self.planners),
            o.remat == "auto",
            functools.partial(self._twice, traced),
        )
        context = PlanContext(
            mesh=o.here,
            machine=o.machine,
            in_tree=traced.in_tree,
            out_tree=traced.out_tree,
            original=traced.module,
            seed=o.seed,
            memory_limit=limit,
            remedies=functools.partial(remedies_of, forms=forms),
            front=self._front_finder(stage),
            passes=stage.passes,
            alternatives=functools.partial(alternatives_of, forms=forms),
            changes=functools.partial(changes_of, forms=forms),
            near=functools.partial(near_plans, planner_of=self.planners),
            bound=functools.partial(bound_without_recomputation, forms=forms),
        )
        return Plan(planned, stage.rewrites, context)

    def _twice(self, traced: Traced, spec: PlanSpec) -> Cost | None:
        """Cost of a plan's actions and rewrites with twice the batch.

        None without a batch, if the actions do not hold, and for large programs.
        """
        if traced.twice is None or len(traced.module.ops) > MAX_OPS_TWICE:
            return None
        try:
            twice = traced.twice()
            stages = StagePlanner(self.options, lambda module: [], self.planners)
            stage = next(program_forms(twice, spec.rewrites, self.options))
            stage = dataclasses.replace(stage, module=without_ties(stage.module, spec.actions))
            return stages.replayed(stage, spec)[1].cost
        except (TypeError, ValueError):  # shapes that the function or the actions do not admit
            return None

    def _front_finder(self, stage: Stage) -> FrontFinder:
        """Function from a plan of a form of the program to the plan's front."""
        plain = stage.base if stage.rewrites.remat else stage.module
        return FrontFinder(plain, self.options.remat, self.planners)
