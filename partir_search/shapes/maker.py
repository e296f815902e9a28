"""Plans of calls with shapes or types different from the first call."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

from partir_search.constraints.ends import without_ties
from partir_search.ir.core import Module
from partir_search.plan.basis import serves
from partir_search.plan.plan import Plan, spec_of
from partir_search.plan.serialization import fingerprint
from partir_search.planning.checks.schedule import check_schedule
from partir_search.planning.pipeline import PlanPipeline
from partir_search.planning.program_forms import program_forms
from partir_search.planning.stage import Stage
from partir_search.planning.tactics import AutomaticPartition
from partir_search.planning.trace import Call, Traced
from partir_search.propagation.actions import Action
from partir_search.propagation.contradictions import IllegalAction
from partir_search.shapes.derive import derive


class ShapesPipeline(PlanPipeline):
    """Plans all signatures of one function, starting from the plan of the first."""

    def remake(
        self,
        call: Call,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        known: Plan | None,
        base: Plan | None,
    ) -> tuple[Plan, Traced]:
        """Plans a call.

        Args:
          call: dynamic arguments of the call.
          args, kwargs: all arguments.
          known: plan of the same shapes, perhaps with different weak types.
          base: first plan of the function, whose state layouts are preserved.
        """
        base = known or (base if self._searches() else None)
        if base is not None:
            traced = self._trace_like(base, call, args, kwargs)
            if known and fingerprint(traced.module) == known.fingerprint:
                return self._best(call, args, kwargs, spec_of(known), {traced.rewrites: traced})
            if self._searches() and serves(base.module, traced.module):
                derived = self._derived(call, args, kwargs, traced, base)
                if derived is not None:
                    return derived
        return self.make(call, args, kwargs)

    def _trace_like(
        self, base: Plan, call: Call, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Traced:
        """Traces the call in as many microbatches as `base`, or in the next permitted number."""
        error: ValueError | None = None
        for loop in dict.fromkeys((base.rewrites.loop, *self._options.loops)):
            try:
                return self.trace(call, args, kwargs, loop)
            except ValueError as reason:  # the microbatches do not divide the batch
                error = error or reason
        assert error is not None
        raise error

    def _derived(
        self,
        call: Call,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        traced: Traced,
        base: Plan,
    ) -> tuple[Plan, Traced] | None:
        """Plan derived from `base`; None if the state layouts cannot be preserved."""
        begin, chosen = time.perf_counter(), self._options.choice_like(base.rewrites.loop)
        given = chosen.schedule
        tactics = list(given) if isinstance(given, Sequence) else [AutomaticPartition()]
        check_schedule(tactics, traced.module, base.mesh_shape)
        options = dataclasses.replace(chosen, shardings_like=base, schedule=tactics, cache=None)
        pipeline = PlanPipeline(self._fun, self._plain, self._name, options)
        pipeline._own = self._own
        stage = next(program_forms(traced, base.rewrites, options))
        stage = pipeline.stage_planner(call, traced).stacked(stage, base.stacks)
        module = without_ties(stage.module, base.actions)

        def fixed(form: Module) -> list[Action]:
            return pipeline.fixed(call, traced, form, self._options.shardings_like)

        made, basis = derive(base, module, fixed, pipeline.planners, self._options)
        if made is None:
            try:
                found = pipeline._best(call, args, kwargs, None, {traced.rewrites: traced})
            except IllegalAction:
                return None
        else:
            rewrites = dataclasses.replace(stage.rewrites, padding=made.padding, remat=made.remat)
            stage = Stage(made.module, rewrites, stage.passes)
            found = self.plan(traced, (stage, made.planned), base.memory_limit), traced
        found[0].basis = basis
        found[0].seconds["from another plan"] = time.perf_counter() - begin
        return found

    def _searches(self) -> bool:
        """True if plans result from a search, or from a plan that did."""
        given = self._options.schedule
        if given is None:
            return self._options.shardings_like is None
        return not isinstance(given, Sequence) or any(
            isinstance(t, AutomaticPartition) for t in given
        )
