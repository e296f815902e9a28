"""Plans of calls in other shapes or types than the first one's."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

from partir_search.constraints.ends import untied
from partir_search.ir.core import Module
from partir_search.plan.basis import serves
from partir_search.plan.plan import Plan, spec_of
from partir_search.plan.serialization import fingerprint
from partir_search.planning.checks.schedule import check_schedule
from partir_search.planning.pipeline import PlanPipeline
from partir_search.planning.stage import Stage
from partir_search.planning.tactics import AutomaticPartition
from partir_search.planning.trace import Call, Traced
from partir_search.propagation.actions import Action
from partir_search.propagation.contradictions import IllegalAction
from partir_search.shapes.derive import derive


class ShapesPipeline(PlanPipeline):
    """Makes the plans of one function; further shapes and types start from its first plan."""

    def remake(
        self,
        call: Call,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        known: Plan | None,
        base: Plan | None,
    ) -> tuple[Plan, Traced]:
        """The plan of a call.

        Args:
          known: that of the same shapes, perhaps in types that are weak where these are strong.
          base: the first plan of the function, whose state stays where it has it.
        """
        base = known or (base if self._searches() else None)
        if base is not None:
            traced, parts = self._trace_like(base, call, args, kwargs)
            if known and fingerprint(traced.module) == known.fingerprint:
                return self._best(call, args, kwargs, spec_of(known), {parts: traced})
            if self._searches() and serves(base.module, traced.module):
                derived = self._derived(call, args, kwargs, traced, parts, base)
                if derived is not None:
                    return derived
        return self.make(call, args, kwargs)

    def _trace_like(
        self, base: Plan, call: Call, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> tuple[Traced, int]:
        """The call traced in as many parts as `base` has, or as the options allow besides."""
        error: ValueError | None = None
        for parts in dict.fromkeys((base.microbatches, *self._options.microbatches)):
            try:
                return self.trace(call, args, kwargs, parts), parts
            except ValueError as reason:  # it does not divide
                error = error or reason
        assert error is not None
        raise error

    def _derived(
        self,
        call: Call,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        traced: Traced,
        parts: int,
        base: Plan,
    ) -> tuple[Plan, Traced] | None:
        """The plan of other shapes or types from that of some; None if its state cannot stay."""
        begin, given = time.perf_counter(), self._options.schedule
        tactics = list(given) if isinstance(given, Sequence) else [AutomaticPartition()]
        check_schedule(tactics, traced.module, base.mesh_shape)
        held = dataclasses.replace(self._options, follow=base, schedule=tactics, cache=None)
        there = PlanPipeline(self._fun, self._plain, self._name, held)
        there._own = self._own
        stage = there.forms(traced, parts, spec_of(base))[0]
        module = untied(stage.module, base.actions)

        def fixed(form: Module) -> list[Action]:
            return there.fixed(call, traced, form, self._options.follow)

        made, basis = derive(base, module, fixed, there.planner_of, self._options)
        if made is None:
            try:
                found = there._best(call, args, kwargs, None, {parts: traced})
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
        """Tells whether plans come from a search, or from a plan that one made."""
        given = self._options.schedule
        if given is None:
            return self._options.follow is None
        return not isinstance(given, Sequence) or any(
            isinstance(t, AutomaticPartition) for t in given
        )
