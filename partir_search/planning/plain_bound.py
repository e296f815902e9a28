"""Bound of the plans without recomputation, beside a plan with some."""

from __future__ import annotations

import copy

from partir_search.mcts.goals import Fit
from partir_search.plan.facts import PlanFacts
from partir_search.plan.lower_bound import found_in_full
from partir_search.plan.plan_bound import PlanBound
from partir_search.planning.alternatives import Forms
from partir_search.planning.answers_unsplit import answers_unsplit
from partir_search.planning.exact_answer import EPISODES_PER_START, exact_moves
from partir_search.planning.exact_steps import MAX_BOUNDED
from partir_search.planning.memory_fit import renamed_for
from partir_search.planning.unfold import project_to_fold
from partir_search.simulator.tables.variables import variables_of
from partir_search.strategies.catalogue import named_strategies


def bound_without_recomputation(plan: PlanFacts, forms: Forms) -> PlanBound | None:
    """Lower bound of the seconds of all plans without recomputation, of any memory.

    Exact steps start from known strategies and from the plan's decisions.

    Args:
      plan: a plan with segments recomputed by the planner.
      forms: forms of the plan's program, with their planners.

    Returns:
      The bound; None without a search, with microbatches, for programs without pairwise costs or
      with too large tables, and if seconds are no goal.
    """
    space, base = plan.space, forms.base
    if space is None or plan.rewrites.microbatches > 1:
        return None
    planner = copy.copy(forms.planner_of(base))
    planner.goals = tuple(goal for goal in planner.goals if not isinstance(goal, Fit))
    before = renamed_for(base, space.decided)
    models, game = planner.game(space.axes, before, space.exclude)
    if sum(variables_of(game.graph, game.mesh).sizes) > MAX_BOUNDED[0]:
        return None
    known = named_strategies(game.mesh, space.axes, game.targets, stages=planner.stage_axes)
    hints = project_to_fold(renamed_for(base, plan.actions), models.folded, base, game)
    starts = [*known, ("the plan", hints)]
    exact = exact_moves(game, starts, episodes=EPISODES_PER_START, bound_alone=True)
    if exact.bound is None and exact.moves:  # of too many labels, along sub-axes
        where = (space.axes, before, space.exclude)
        exact = answers_unsplit(planner, game, exact, *where, EPISODES_PER_START)
    found = found_in_full(exact.lower_bound)
    return PlanBound(found.seconds, plan.cost.seconds, found.without) if found else None
