"""Plans of a traced program, by search or by replay."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

from partir_search.ir.core import Module
from partir_search.mcts.goals import Goal, scorer
from partir_search.passes.align import disjoint_pads, find_aligned
from partir_search.passes.pad import pad_module
from partir_search.passes.pad_choice import Pad, find_pads
from partir_search.passes.remat import Range, rematerialize
from partir_search.passes.stacks import Stack, find_stacks, stack_module
from partir_search.plan.planned import Planned
from partir_search.plan.report.progress import search_progress
from partir_search.plan.spec import PlanSpec
from partir_search.planning.faster_scans import beside_plain, recompute_residuals
from partir_search.planning.form_tiles import with_tiles_of
from partir_search.planning.interruption import FarBehind
from partir_search.planning.known_strategies import known_plan
from partir_search.planning.memory_fit import FormPlanner, fit_by_remat, renamed_for
from partir_search.planning.notices import warn_changed
from partir_search.planning.options import Options
from partir_search.planning.parallelism import StackParallel
from partir_search.planning.planner import Planner
from partir_search.planning.planner_cache import PlannerCache
from partir_search.planning.stage import Stage
from partir_search.planning.tactics import AutomaticPartition, Tactic
from partir_search.planning.unwatched import Unwatched, plan_unwatched, watch
from partir_search.propagation.actions import Action
from partir_search.rules.registry import RuleTable
from partir_search.simulator.cost import Cost

# Of the episodes, for a search on a second form of a program, from the answer for the first form.
FURTHER_EPISODES = 0.1

StagePlan = tuple[Stage, Planned]
Fixed = Callable[[Module], list[Action]]


class StagePlanner:
    """Plans of one traced program.

    Attributes:
      fixed: function from a form of the program to the actions fixed by the user.
      planner_of: function from a form of the program to its planner.
      planner: the same, each planner made once.
      rival: seconds that a known strategy must reach, or `FarBehind` is raised.
    """

    def __init__(
        self, options: Options, fixed: Fixed, planner_of: Callable[[Module], Planner]
    ) -> None:
        self._options, self.fixed, self.planner_of = options, fixed, planner_of
        self.planner = PlannerCache(planner_of)
        self.rival = math.inf

    # Replays -----------------------------------------------------------------------------------

    def replayed(self, stage: Stage, spec: PlanSpec) -> StagePlan:
        """Replays a plan of the same program, with its rewrites."""
        stage = self.padded(self.stacked(stage, spec.rewrites.stacks), spec.rewrites.padding)
        stage = rematerialized(stage, spec.rewrites.remat)
        return stage, _replay(self.planner(stage.module), spec, self.fixed(stage.module))

    def replayed_changed(self, stage: Stage, spec: PlanSpec, changed: str) -> StagePlan:
        """Replays the compatible actions of a plan on a changed program; warns about the rest.

        Args:
          stage: the changed program.
          spec: the plan.
          changed: text of the differences between both programs.
        """
        fixed = self.fixed(stage.module)
        actions = [*fixed, *(a for a in spec.actions if a not in fixed)]
        planned, dropped = self.planner(stage.module).replay_compatible(actions)
        warn_changed(changed, dropped)
        return stage, planned

    # Searches ----------------------------------------------------------------------------------

    def searched(self, stage: Stage) -> StagePlan:
        """Runs the schedule, with the rewrites permitted by the options."""
        stage, *stacked = self._stackings(stage)
        aligned = self.aligned(stage)
        uneven = self._uneven(stage, aligned.rewrites.padding) if self._options.pad else ()
        if self._options.remat is True and not uneven and not stacked:
            return self._fully_rematerialized(aligned, ())
        found = None if uneven else self._recomputed_at_once(aligned)
        if found is not None:
            return found
        stage_plan = self._schedule(aligned)
        if uneven and stage_plan[1].reports:
            stage_plan = self._better_padded(stage, stage_plan, uneven)
        for form in stacked if stage_plan[1].reports else ():
            stage_plan = self._better_stacked(form, stage_plan)
        if self._options.remat is True:
            return self._fully_rematerialized(
                stage_plan[0], stage_plan[1].actions if stage_plan[1].reports else ()
            )
        stage, planned = stage_plan
        if self._options.remat == "auto" and planned.reports:
            return self._fitted(stage, planned)
        return stage_plan

    def aligned(self, stage: Stage) -> Stage:
        """The program with stencil dims padded to a common size, if the options allow padding."""
        if not self._options.pad:
            return stage
        table = RuleTable()
        rules = [table(op) for op in stage.module.ops]
        return self.padded(stage, find_aligned(stage.module, rules, self._options.shape))

    def _uneven(self, stage: Stage, aligned: tuple[Pad, ...]) -> tuple[Pad, ...]:
        """Indivisible dims that could be padded, in addition to `aligned`."""
        planner = self.planner(stage.module)
        module, rules = stage.module, planner.graph.rules
        uneven = find_pads(module, rules, planner.mesh)
        return disjoint_pads(module, rules, aligned, uneven) if aligned and uneven else uneven

    def padded(self, stage: Stage, pads: tuple[Pad, ...]) -> Stage:
        """The program with padded dims."""
        if not pads:
            return stage

        def rewrite(module: Module) -> Module:
            table = RuleTable()
            return pad_module(module, [table(op) for op in module.ops], pads)

        return stage.run("pad", rewrite, dataclasses.replace(stage.rewrites, padding=pads))

    def _better_padded(
        self, plain: Stage, stage_plan: StagePlan, uneven: tuple[Pad, ...]
    ) -> StagePlan:
        """The better of a plan and a plan with the uneven dims padded as well."""
        stage, planned = stage_plan
        padded = self.padded(plain, (*stage.rewrites.padding, *uneven))
        planner = self.planner(padded.module)
        same_mesh = planner.mesh == planned.sketch.partition.mesh
        hints = planned.actions if same_mesh else ()
        share = FURTHER_EPISODES if hints else 1.0
        return self._better(padded, stage_plan, "padding", hints, share)

    def _better_stacked(self, form: Stage, stage_plan: StagePlan) -> StagePlan:
        """The better of a plan and a plan of a form with stacks, padded if the plan is."""
        stage, planned = stage_plan
        aligned = self.aligned(form)
        if stage.rewrites.padding:
            uneven = self._uneven(form, aligned.rewrites.padding)
            aligned = self.padded(form, (*aligned.rewrites.padding, *uneven))
        planner = self.planner(aligned.module)
        mesh = planned.sketch.partition.mesh
        alike = planner.mesh == mesh or not mesh.sub_axes()
        return self._better(aligned, stage_plan, "stacks", planned.actions if alike else ())

    def _better(
        self,
        form: Stage,
        known: StagePlan,
        rewrites: str,
        hints: Sequence[Action],
        share: float = 1.0,
    ) -> StagePlan:
        """The better of a plan and a plan of another form.

        Args:
          form: the program with further rewrites.
          known: plan of the program without.
          rewrites: name of the rewrites, for the bound of the plans without (`PlanBound.without`).
          hints / share: as of `_run`.
        """
        planner = self.planner(form.module)
        score = scorer(planner.goals)
        planner.beat = score(known[1].cost)
        try:
            stage, found = self._schedule(form, hints, share)
        except FarBehind:
            return known
        finally:
            planner.beat = None
        if score(found.cost) < score(known[1].cost):
            return stage, found.bounded_with(known[1], rewrites)
        return known

    def _stackings(self, stage: Stage) -> list[Stage]:
        """Forms of the program without and with equal programs computed on stacks.

        Only forms with stacks if options or schedule ask for stacks and the program admits any.
        """
        given = self._options.schedule
        tactics = given if isinstance(given, Sequence) else ()
        wanted = self._options.stack is True or any(isinstance(t, StackParallel) for t in tactics)
        if not self._options.stack:
            return [stage]
        planner = self.planner(stage.module)
        found = find_stacks(stage.module, planner.graph.rules, planner.mesh.devices)
        forms = [self.stacked(stage, stacks) for stacks in found if stacks]
        return forms if forms and wanted else [stage, *forms]

    def stacked(self, stage: Stage, stacks: tuple[Stack, ...]) -> Stage:
        """The program with equal programs computed on stacks."""
        if not stacks:
            return stage

        def rewrite(module: Module) -> Module:
            return stack_module(module, self.planner(module).graph.rules, stacks)

        return stage.run("stack", rewrite, dataclasses.replace(stage.rewrites, stacks=stacks))

    def _fully_rematerialized(self, stage: Stage, hints: Sequence[Action]) -> StagePlan:
        """Plan with all segments of the forward pass recomputed."""
        form = self.planner.recomputed(stage.module)
        return self._schedule(rematerialized(stage, form.segments, form.module), hints)

    def _recomputed_at_once(self, stage: Stage) -> StagePlan | None:
        """Plan with recomputed segments, without a search on the program as it is.

        None if a tiling of that program could fit, if recomputation frees nothing, or if the
        options ask for something other than a search on all axes.
        """
        o, planner = self._options, self.planner(stage.module)
        automatic = o.remat == "auto" and o.searches_all and not o.shardings_like
        limit = planner.memory_limit
        if not automatic or planner.model.least_peak(planner.mesh.devices) <= limit:
            return None
        form = self.planner.recomputed(stage.module)
        if not form.segments:
            return None
        known = known_plan(self.planner(form.module), self.fixed(form.module))
        start, _ = self._replayed(stage.module, renamed_for(stage.module, known.actions))
        found = self._fitted(stage, start)
        return found if found[1].reports else None

    def _fitted(self, stage: Stage, planned: Planned) -> StagePlan:
        """Plan with some of the segments recomputed, if `planned` exceeds the memory limit.

        Within the limit, residuals of scans run again where that takes fewer seconds.

        Args:
          stage: the program.
          planned: plan of the program without recomputation.
        """
        planner = self.planner(stage.module)
        limit, score = planner.memory_limit, scorer(planner.goals)
        form = self.planner.recomputed(stage.module)
        if not form.segments:
            return stage, planned

        def search(module: Module, hints: Sequence[Action], goals: Sequence[Goal[Cost]]) -> Planned:
            return self._run(self.planner(module), hints, goals)

        def objective(cost: Cost) -> float:
            return score(cost).objective

        def correct(
            module: Module, actions: Sequence[Action], other: Planned, played: Planned
        ) -> Planned | None:
            planner, fixed = self.planner(module), self.fixed(module)
            return with_tiles_of(planner, other, played, actions, fixed, objective)

        known = self._known if self._options.searches_all else None
        forms = FormPlanner(search, self._replayed, objective, known, correct)
        remat: tuple[Range, ...] = ()
        if planned.cost.peak_bytes > limit:
            program = stage.module, form.module, form.segments
            planned, remat = fit_by_remat(*program, planned, limit, forms)
        elif known is not None:
            planned, remat = self._unstacked(planner, planned, forms)
        return rematerialized(stage, remat, planned.graph.module), planned

    def _unstacked(
        self, planner: Planner, planned: Planned, forms: FormPlanner
    ) -> tuple[Planned, tuple[Range, ...]]:
        """Plan with residuals of scans recomputed if faster, and the scans.

        Debugging ops decide nothing: forms are compared in the program without.
        """
        unwatched, start = Unwatched.of(planner), planned
        if unwatched.debugging:
            start, _ = self._replayed(unwatched.module, planned.actions)
        form = self.planner.recomputed(unwatched.module)
        program = unwatched.module, form.module, form.segments
        found, remat = recompute_residuals(*program, start, planner.memory_limit, forms)
        if not remat:
            return planned, ()
        if unwatched.debugging:
            remat = unwatched.watched(remat)
            found = watch(self.planner(rematerialize(planner.module, remat)), found)
        return beside_plain(found, planned), remat

    def _known(self, module: Module) -> Planned:
        """Plan of the best known strategy."""
        return known_plan(self.planner(module), self.fixed(module))

    def _replayed(self, module: Module, actions: Sequence[Action]) -> tuple[Planned, bool]:
        planned, dropped = self.planner(module).replay_compatible(actions)
        return planned, not dropped

    def _schedule(
        self, stage: Stage, hints: Sequence[Action] = (), share: float = 1.0
    ) -> StagePlan:
        return stage, self._run(self.planner(stage.module), hints, share=share)

    def _run(
        self,
        planner: Planner,
        hints: Sequence[Action] = (),
        goals: Sequence[Goal[Cost]] = (),
        share: float = 1.0,
    ) -> Planned:
        """Runs the schedule.

        Args:
          planner: planner of the program.
          hints: actions of a plan for a similar program, as a further start of searches.
          goals: goals in addition to the planner's.
          share: fraction of the episodes to play.
        """
        o = self._options
        schedule = _default(o) if o.schedule is None else o.schedule
        assert isinstance(schedule, Sequence)
        automatic = any(isinstance(t, AutomaticPartition) for t in schedule)
        with search_progress(o.progress if automatic else False, o.episodes) as progress:

            def run(planner: Planner, fixed: Sequence[Action]) -> Planned:
                return planner.run(
                    schedule,
                    fixed=fixed,
                    episodes=math.ceil(share * o.episodes),
                    seed=o.seed,
                    progress=progress.watch,
                    hints=hints,
                    journal=o.journal,
                )

            own, fixed = planner.goals, self.fixed(planner.module)
            planner.goals, planner.rival = (*own, *goals), self.rival
            try:
                planned = plan_unwatched(planner, fixed, run, self.planner_of)
            finally:
                planner.goals = own  # figures beside the plan are by the user's goals
            progress.planned(planned.cost)
            return planned


def rematerialized(stage: Stage, remat: tuple[Range, ...], known: Module | None = None) -> Stage:
    """The program with segments of the forward pass recomputed.

    Args:
      stage: the program.
      remat: the segments.
      known: the rewritten program, if already computed.
    """
    if not remat:
        return stage
    recomputed = stage.run(
        "rematerialize",
        lambda module: known or rematerialize(module, remat),
        dataclasses.replace(stage.rewrites, remat=remat),
    )
    return dataclasses.replace(recomputed, base=stage.module)


def _default(options: Options) -> list[Tactic]:
    return [] if options.shardings_like else [AutomaticPartition()]


def _replay(planner: Planner, spec: PlanSpec, fixed: Sequence[Action]) -> Planned:
    """Applies the actions of a plan, then the user's shardings `fixed`."""
    try:
        replayed = planner.replay(spec.actions, fixed)
    except ValueError as error:
        if spec.mesh.user == planner.mesh.user:
            raise
        raise ValueError(
            f"the saved plan is for mesh<{spec.mesh}>, this is mesh<{planner.mesh}>, where it"
            f" does not hold: {error}; plan again with schedule=None"
        ) from error
    same = spec.mesh.user == planner.mesh.user and spec.machine == planner.machine.name
    return dataclasses.replace(
        replayed,
        saved_bound=spec.bound,
        saved_space=spec.space,
        saved_confirmation=spec.confirmed if same else None,
    )
