"""Derivation of a plan for new shapes: adapted from a base plan, with a short search if needed."""

from __future__ import annotations

import dataclasses

from partir_search.ir.core import Module
from partir_search.mcts.goals import scorer
from partir_search.plan.basis import Basis, changed_arguments
from partir_search.plan.plan import Plan
from partir_search.plan.planned import with_search
from partir_search.plan.report.progress import search_progress
from partir_search.planning.options import Options
from partir_search.planning.tactics import AutomaticPartition
from partir_search.shapes.adapt import Adapted, Fixed, adapt, entered
from partir_search.shapes.transfer import MakePlanner

MAX_PACE = 1.25  # seconds per work relative to the base plan; a slower plan is searched
MIN_GROWTH = 2.0  # work relative to the base plan from which a search may pay
EPISODE_DIVISOR = 20  # a full search's episodes per episode of the short search


def derive(
    base: Plan, module: Module, fixed: Fixed, planner_of: MakePlanner, options: Options
) -> tuple[Adapted | None, Basis]:
    """Derives a plan of `module` with the state layouts of `base`.

    Args:
      base: the plan to derive from.
      module: the program of the new shapes.
      fixed: function from a form of the program to the actions fixed by the user.
      planner_of: function from a form of the program to its planner, on the sub-axes of `base`.
      options: options of `auto_partition`.

    Returns:
      The adapted plan, or None if actions of `base` do not preserve its layouts; and its origin.
    """
    basis = Basis(changed_arguments(base.module, module), base.cost.seconds)
    found = adapt(base, module, fixed, planner_of, options, basis.work)
    if found is None:
        return None, dataclasses.replace(basis, episodes=options.episodes)
    basis = dataclasses.replace(basis, left_out=found.left_out)
    slower = found.inexact and basis.pace(found.planned.cost.seconds) > MAX_PACE
    over = base.fits and found.planned.most_peak_bytes > base.memory_limit
    if slower or over or basis.work >= MIN_GROWTH:
        episodes = options.episodes if over else max(1, options.episodes // EPISODE_DIVISOR)
        if better := _searched(base, found, fixed, planner_of, options, episodes):
            found = better
        basis = dataclasses.replace(basis, episodes=episodes)
    return found, basis


def _searched(
    base: Plan,
    found: Adapted,
    fixed: Fixed,
    planner_of: MakePlanner,
    options: Options,
    episodes: int,
) -> Adapted | None:
    """Result of a short search with the argument layouts of `base`; None without an improvement."""
    planner = planner_of(found.planned.module)
    with search_progress(options.progress, episodes) as progress:
        free = planner.run(
            [AutomaticPartition()],
            fixed=fixed(planner.module),
            episodes=episodes,
            seed=options.seed,
            progress=progress.watch,
            hints=found.planned.actions,
            journal=options.journal,
        )
    planned = entered(base, planner, free.actions)
    score = scorer(planner.goals)
    if planned is None or not score(planned.cost) < score(found.planned.cost):
        return None
    reports = tuple(
        dataclasses.replace(r, proven=False, lower_bound=None, space=None) for r in free.reports
    )
    return dataclasses.replace(found, planned=with_search(planned, free, reports))
