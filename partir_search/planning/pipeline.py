"""Planning of a call: trace, rewrites, then search or replay."""

from __future__ import annotations

import dataclasses
import functools
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax

from partir_search.constraints.ends import without_ties
from partir_search.constraints.region_axes import region_axes
from partir_search.constraints.shardings import fixed_actions, warn_of_constraints
from partir_search.ir.core import Module
from partir_search.ir.manual import AxisNames
from partir_search.ir.mesh import MeshShape
from partir_search.passes.first import first_passes
from partir_search.passes.group_arguments import with_groups
from partir_search.plan.argument_record import record_differences
from partir_search.plan.multihost import plan_first, spans_processes
from partir_search.plan.plan import Plan, spec_of
from partir_search.plan.report.progress import show_planned
from partir_search.plan.rewrites import Rewrites
from partir_search.plan.serialization import changes, check_mesh
from partir_search.plan.spec import PlanSpec
from partir_search.planning.checks.batch import warn_uneven
from partir_search.planning.confirm.confirm import confirmed
from partir_search.planning.contest import BEHIND, Contest, behind, rank
from partir_search.planning.interruption import FarBehind
from partir_search.planning.iteration_forms import rival_seconds
from partir_search.planning.known_strategies import known_actions
from partir_search.planning.layer_forms import layer_forms
from partir_search.planning.loop_queue import LoopQueue
from partir_search.planning.loops import Layered, with_loops
from partir_search.planning.notices import warn_constants, warn_opaque
from partir_search.planning.options import Options
from partir_search.planning.other_batch import with_batch
from partir_search.planning.pipeline_choice import offered_options
from partir_search.planning.plan_maker import PlanMaker
from partir_search.planning.planner_maker import PlannerMaker
from partir_search.planning.program_forms import attention_forms, first_stage, program_forms
from partir_search.planning.reused_layouts import reused_layouts
from partir_search.planning.stage import Stage
from partir_search.planning.stage_planner import StagePlanner
from partir_search.planning.trace import Call, Traced, own_shardings, read_call
from partir_search.propagation.actions import Action
from partir_search.propagation.data_arguments import data_arguments
from partir_search.propagation.loop_batches import batch_dims
from partir_search.propagation.sub_axes import check_regions


class PlanPipeline:
    """Plans the calls of one function."""

    def __init__(self, fun: Callable[..., Any], plain: Any, name: str, options: Options) -> None:
        """A pipeline for one function.

        Args:
          fun: the function.
          plain: `fun` under `jax.jit`, with the user's static and donated arguments.
          name: name of the function, for messages.
          options: options of `auto_partition`.
        """
        self._fun, self._plain, self._name, self._options = fun, plain, name, options
        self._own: tuple[Sequence[Any], Sequence[Any]] = ((), ())  # `fun`'s own shardings
        self._layered: Layered | None = None  # of a choice among pipelines

    def make(
        self, call: Call, args: Sequence[Any], kwargs: dict[str, Any], known: Plan | None = None
    ) -> tuple[Plan, Traced]:
        """Plans a call, or replays `known`, a plan of the same program.

        Of several numbers of microbatches, and of ops of a layer run again, the first with a
        fitting plan is chosen. If a plan fits only with rematerialization, or slowly, the next
        number may be faster and is planned as well.
        """
        o = self._options
        if known is not None:
            return self._best(call, args, kwargs, spec_of(known))
        if o.plan_on == "first" and spans_processes(o.mesh):
            made: list[tuple[Plan, Traced]] = []

            def here() -> Plan:
                made.append(self._cached(call, args, kwargs))
                return made[0][0]

            found = plan_first(here)
            return made[0] if isinstance(found, Plan) else self._best(call, args, kwargs, found)
        return self._cached(call, args, kwargs)

    def known_plans(
        self, call: Call, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> dict[str, Plan]:
        """Plans of the known strategies, by name; inside of stages if the step has a pipeline."""
        if self._options.competing and not self._options.leaves_pipelines_out:
            layered = Layered()
            whole = self._traced(call, args, kwargs)
            options, _ = offered_options(self._options, layered(whole, 0)[0].module)[0]
            return self._beside(options, layered).known_plans(call, args, kwargs)
        traced = self.trace(call, args, kwargs, self._options.loops[0])
        stages = self.stage_planner(call, traced)
        plain = first_stage(traced, self._options.shape)
        if traced.rewrites.pipeline:
            plain = attention_forms(plain, None, self._options)[0]
        stage = stages.aligned(layer_forms(plain, self._options.scan_layers is True)[0])
        fixed = stages.fixed(stage.module)
        stage = dataclasses.replace(stage, module=without_ties(stage.module, fixed))
        planner = stages.planner(stage.module)
        limit = planner.memory_limit
        return {
            name: self.plan(traced, (stage, planner.replay(actions)), limit, stages.planner)
            for name, actions in known_actions(planner, fixed)
        }

    # One call ----------------------------------------------------------------------------------

    def _cached(
        self, call: Call, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> tuple[Plan, Traced]:
        """The plan from the cache, or a new plan to be stored."""
        o = self._options
        if o.replays or not o.cache:
            return self._best(call, args, kwargs, self._given())
        traced = self.trace(call, args, kwargs, o.loops[0])
        path = o.cache.path(traced.module, o.shape, o.facts())
        if saved := o.cache.load(path):
            try:
                return self._best(call, args, kwargs, saved, {o.loops[0]: traced})
            except ValueError as error:
                warnings.warn(f"{path} cannot be replayed: {error}; planned again", stacklevel=2)
        plan, found = self._best(call, args, kwargs, None, {o.loops[0]: traced})
        if plan.fits:
            o.cache.store(path, plan)
        return plan, found

    def _best(
        self,
        call: Call,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        spec: PlanSpec | None,
        traces: Mapping[Rewrites, Traced] = MappingProxyType({}),
    ) -> tuple[Plan, Traced]:
        """Best plan over pipelines, the loops over microbatches and the forms of the program.

        Args:
          spec: a plan to replay.
          traces: traced calls, by loop.
        """
        if spec is None and self._options.competing:
            return self._best_choice(call, args, kwargs)
        best = self._best_form(call, args, kwargs, spec, traces)
        assert best is not None
        return self._finished(best[0], replayed=spec is not None), best[1]

    def _best_form(
        self,
        call: Call,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        spec: PlanSpec | None,
        traces: Mapping[Rewrites, Traced] = MappingProxyType({}),
        whole: Traced | None = None,
        contest: Contest | None = None,
    ) -> tuple[Plan, Traced] | None:
        """Best plan over the loops over microbatches and the forms of the program.

        Args:
          spec: a plan to replay.
          traces: traced calls, by loop.
          whole: the traced call before all passes, if known.
          contest: plans made of other pipelines; None is returned if no form can win.
        """
        best: tuple[Plan, Traced] | None = None

        def is_short() -> bool:
            return best is None or not best[0].fits or best[0].short_of_memory

        loops = LoopQueue((spec.rewrites.loop,) if spec else self._options.loops)
        for loop in loops:
            begin = time.perf_counter()
            traced = traces.get(loop)
            if traced is None:
                whole = whole or self._traced(call, args, kwargs)
                traced = self.trace(call, args, kwargs, loop, whole)
            spent = time.perf_counter() - begin
            if not loops.is_new(traced.rewrites):
                continue
            known = spec.rewrites if spec else None
            for stage in program_forms(traced, known, self._options, is_short):
                rival = rival_seconds(stage, best[0] if best else None)
                plan = self._planned(call, traced, stage, spec, contest, rival)
                if plan is None:
                    continue
                plan.seconds["trace and import"] = spent
                loops.add(plan, traced)
                if best is None or rank(plan) < rank(best[0]):
                    best = plan, traced
            if best is None and traced.rewrites.pipeline:  # ops that run again make none faster
                break
        return best

    def _best_choice(
        self, call: Call, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> tuple[Plan, Traced]:
        """Best plan over pipelines; any that the program does not admit are left out."""
        found: list[tuple[tuple[Plan, Traced], PlanPipeline]] = []
        whole = self._traced(call, args, kwargs)
        layered, contest = Layered(), Contest()
        offered = offered_options(self._options, layered(whole, 0)[0].module)
        for options, closed in offered:
            if self._options.searches and not contest.may_win(closed):
                continue
            other = self._beside(options, layered)
            try:
                best = other._best_form(call, args, kwargs, None, whole=whole, contest=contest)
            except ValueError as error:
                if not options.loops[0].pipeline or not self._options.leaves_pipelines_out:
                    raise
                warnings.warn(f"planned without an optional pipeline: {error}", stacklevel=2)
                continue
            if best is not None:
                contest.add(best[0], closed)
                found.append((best, other))
        (plan, traced), chosen = min(found, key=lambda each: rank(each[0][0]))
        tried = contest.tried if len(offered) > 1 else []
        return chosen._finished(plan.beside(tried)), traced

    def _beside(self, options: Options, layered: Layered) -> PlanPipeline:
        """Planning of the same function with other options and shared programs of layers."""
        other = PlanPipeline(self._fun, self._plain, self._name, options)
        other._own, other._layered = self._own, layered
        return other

    def _finished(self, plan: Plan, *, replayed: bool = False) -> Plan:
        """The best plan, shown; a new one confirmed by a compiler if the options ask for it."""
        if self._options.confirm and not replayed:
            plan = confirmed(plan, self._options.confirm, self.planners)
        if plan.searches:
            show_planned(self._options.progress, self._name, plan.cost)
        warn_uneven(plan, self._options)
        return plan

    def _planned(
        self,
        call: Call,
        traced: Traced,
        stage: Stage,
        spec: PlanSpec | None,
        contest: Contest | None,
        rival: float,
    ) -> Plan | None:
        """Plan of one form of a program; None without a chance in the contest.

        Args:
          rival: seconds that a known strategy must reach, without a contest.
        """
        o = self._options
        stages = self.stage_planner(call, traced)
        stages.rival = rival
        given = spec.actions if spec else ()
        own = without_ties(stage.module, [*given, *stages.fixed(stage.module)])
        stage = dataclasses.replace(stage, module=own)
        mesh = self.mesh(stage.module)
        check_regions(stage.module, mesh)
        warn_opaque(stage.module)
        warn_of_constraints(stage.module, mesh, o.mesh)
        warn_constants(stage.module)
        limit = o.memory_limit
        if contest is not None and traced.rewrites.pipeline:
            stages.rival = contest.known
        elif contest is not None:
            if behind(stages.planner(stage.module), contest.seconds):
                return None
            stages.rival = BEHIND * contest.seconds
        if spec is None:
            try:
                found = stages.searched(stage)
            except FarBehind:
                return None
            return self.plan(traced, found, limit, stages.planner)
        changed = changes(spec, traced.module)
        if changed and spec.on_change == "raise":
            remedy = "plan again with schedule=None, or load_plan(..., on_change='apply')"
            raise ValueError(f"{changed}; {remedy}")
        check_mesh(spec, stages.planner(stage.module).mesh)
        if changed:
            return self.plan(traced, stages.replayed_changed(stage, spec, changed), limit)
        plan = self.plan(traced, stages.replayed(stage, spec), limit, stages.planner)
        differences = record_differences(spec, plan.arguments(), spec.mesh.user == o.shape.user)
        if differences and spec.on_change == "raise":
            raise ValueError(differences)
        if differences:
            warnings.warn(differences, stacklevel=2)
        return plan

    @property
    def plan(self) -> PlanMaker:
        """Function from a form of the program and the actions applied to it to the plan."""
        return PlanMaker(self._options, self.planners)

    # Stages of the pipeline --------------------------------------------------------------------

    def trace(
        self,
        call: Call,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        loop: Rewrites,
        whole: Traced | None = None,
    ) -> Traced:
        """Traces a call.

        Args:
          call: the dynamic arguments.
          args, kwargs: all arguments.
          loop: number of microbatches, and their pipeline.
          whole: the traced call before all passes, if known.
        """
        traced = whole or self._traced(call, args, kwargs)
        traced = with_loops(traced, loop, self._layered)
        for name, rewrite in first_passes(self._options.shape.devices).items():
            traced = traced.run(name, rewrite)
        groups = self._options.groups
        traced = traced.run("group_arguments", lambda module: with_groups(module, groups))
        data = batch_dims(traced.module, data_arguments(traced.module))
        other = with_batch(call, args, kwargs, data, 2)
        if other is None:
            return traced
        twice = functools.partial(self.trace, *other, loop)
        return dataclasses.replace(traced, twice=twice)

    def _traced(self, call: Call, args: Sequence[Any], kwargs: dict[str, Any]) -> Traced:
        trip_counts = self._options.trip_counts
        if isinstance(self._fun, jax.stages.Wrapped):  # before `read_call` drops jax's trace
            self._own = own_shardings(self._plain, call, args, kwargs)
        return read_call(
            self._plain,
            call,
            args,
            kwargs,
            self._name,
            trip_counts=trip_counts,
            region_axes=self._region_axes,
            platform=self._options.platform,
        )

    def _region_axes(self, region: Any, names: Sequence[str]) -> AxisNames:
        """Axes of the mesh for axes of the mesh of a `shard_map` region inside the function."""
        return region_axes(region, names, self._options.shape, self._options.mesh)

    def fixed(self, call: Call, traced: Traced, module: Module, like: Plan | None) -> list[Action]:
        """Actions for the shardings fixed by the user, on a form of the program."""
        o = self._options
        leaves = (call.args, o.in_shardings), (traced.out_tree, o.out_shardings)
        reused = reused_layouts(module, like) if like else []
        tied = dataclasses.replace(module, ties=traced.module.ties)
        return fixed_actions(tied, self.mesh(module), o.mesh, *leaves, reused, self._own)

    @property
    def planners(self) -> PlannerMaker:
        """Function from a form of the program to its planner, without the call's arrays."""
        return PlannerMaker(self._options, self._own)

    def mesh(self, module: Module) -> MeshShape:
        """The mesh, with axes split as required by fixed shardings on further meshes."""
        return self.planners.mesh(module)

    def stage_planner(self, call: Call, traced: Traced) -> StagePlanner:
        """Planner of the forms of a traced program."""

        def fixed(module: Module) -> list[Action]:
            return self.fixed(call, traced, module, self._options.shardings_like)

        return StagePlanner(self._options, fixed, self.planners)

    def _given(self) -> PlanSpec | None:
        """The schedule as a PlanSpec to replay; None for a schedule of tactics."""
        given = self._options.schedule
        return spec_of(given) if isinstance(given, Plan | PlanSpec) else None
