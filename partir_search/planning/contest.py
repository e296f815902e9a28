"""Contest of pipelines with open numbers, and of the step without a pipeline."""

from __future__ import annotations

import math

from partir_search.plan.alternatives import TriedPipeline
from partir_search.plan.plan import Plan
from partir_search.planning.iteration_forms import FASTER
from partir_search.planning.layer_forms import SLOWER
from partir_search.planning.planner import Planner

FAST = 0.97  # of a plan's seconds: below, memory has slowed the plan
BEHIND = 1.2  # seconds of known strategies over a plan's, above which a search does not gain enough
TRUSTED = 1.25  # simulated seconds over those of the closed form, at most, of a trusted closed form


class Contest:
    """Plans made so far, and whether a further pipeline may be faster.

    A closed form leaves out kernels of few operations, exposed collectives and slots. The part left
    out is much alike for all pipelines of a program: simulated seconds of one pipeline over the
    pipeline's closed form scale all closed forms.

    Attributes:
      tried: figures of the plans.
      known: seconds of the fastest known strategy of the fastest fitting plan of a pipeline;
        infinite without one. A pipeline whose known strategies are all slower is not searched.
    """

    def __init__(self) -> None:
        self.tried: list[TriedPipeline] = []
        self.known = math.inf

    def add(self, plan: Plan, closed_seconds: float | None) -> None:
        """Adds a plan.

        Args:
          closed_seconds: by closed form; None for given numbers and without a pipeline.
        """
        name = "no pipeline"
        if plan.pipeline and plan.fits and plan.cost.seconds < self.seconds:
            self.known = known_seconds(plan)
        if plan.pipeline:
            name = f"{plan.pipeline}, {plan.microbatches} microbatches"
        self.tried.append(TriedPipeline(name, closed_seconds, plan.cost, plan.fits))

    @property
    def seconds(self) -> float:
        """Seconds of the fastest plan that fits; infinite without one."""
        return min((t.cost.seconds for t in self.tried if t.fits), default=math.inf)

    def may_win(self, closed_seconds: float | None) -> bool:
        """True if a pipeline may be faster than the plans made so far.

        Args:
          closed_seconds: as in `add`.
        """
        if closed_seconds is None or not math.isfinite(self.seconds):
            return True
        if closed_seconds >= self.seconds:  # a closed form leaves out, and adds nothing
            return False
        scales = [
            t.cost.seconds / t.closed_seconds for t in self.tried if t.fits and t.closed_seconds
        ]
        if not scales or min(scales) > TRUSTED:
            return True
        return closed_seconds * min(scales) < self.seconds


def rank(plan: Plan) -> tuple[bool, float]:
    """Rank of a form's plan, the least first: by seconds, or by bytes beyond the memory."""
    seconds = plan.cost.seconds / (SLOWER if plan.scan_layers else 1.0)
    seconds *= FASTER if plan.parallel_iterations > 1 else 1.0
    return not plan.fits, seconds if plan.fits else plan.peak_bytes


def known_seconds(plan: Plan) -> float:
    """Seconds of the fastest known strategy of any size; infinite without a search."""
    costs = (cost for search in plan.searches for _, cost in search.known)
    return min((cost.seconds for cost in costs), default=math.inf)


def slowed(plan: Plan) -> bool:
    """True for a plan of a pipeline far behind the fastest known strategy of any size."""
    return bool(plan.pipeline) and known_seconds(plan) < FAST * plan.cost.seconds


def behind(planner: Planner, seconds: float) -> bool:
    """True if the kernels alone of any plan take longer than `seconds`."""
    if math.isinf(seconds) or planner.streams:  # rings may skip kernels
        return False
    return planner.model.least_seconds(planner.mesh.devices) > SLOWER * seconds
