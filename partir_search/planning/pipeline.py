"""From a call of a function to its plan: tracing, searching, and what to do if nothing fits."""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax

from partir_search.constraints.ends import untied
from partir_search.constraints.shardings import fixed_actions, fixed_mesh, warn_of_constraints
from partir_search.ir.core import Module
from partir_search.ir.mesh import MeshShape
from partir_search.mcts.goals import Goal, scorer
from partir_search.passes.align import apart, find_aligned
from partir_search.passes.attention import with_attention
from partir_search.passes.group_arguments import with_groups
from partir_search.passes.pad import pad_module
from partir_search.passes.pad_choice import Pad, find_pads
from partir_search.passes.remat import Range, find_segments, rematerialize
from partir_search.plan.multihost import plan_first, spans_processes
from partir_search.plan.plan import Plan, saved_plan
from partir_search.plan.planned import Planned
from partir_search.plan.report.tables import search_progress
from partir_search.plan.serialization import SavedPlan, changes, check_mesh
from partir_search.planning.checks.batch import warn_uneven
from partir_search.planning.follow import following_wishes
from partir_search.planning.memory_fit import relieve, remedies_of
from partir_search.planning.microbatch import accumulate, of_dynamic
from partir_search.planning.notices import warn_changed, warn_constants, warn_opaque
from partir_search.planning.options import Options
from partir_search.planning.parallelism import ContextParallel
from partir_search.planning.planner import Planner
from partir_search.planning.tactics import AutomaticPartition
from partir_search.planning.trace import Call, Traced, donated_leaves, own_shardings, trace_call
from partir_search.planning.unwatched import plan_unwatched
from partir_search.propagation.actions import Action
from partir_search.rules.registry import RuleTable
from partir_search.simulator.cost import Cost


class Maker:
    """Makes the plans of one function."""

    def __init__(self, fun: Callable[..., Any], plain: Any, name: str, options: Options) -> None:
        """A maker for `fun`, which `plain` jits with the user's static and donated arguments."""
        self._fun, self._plain, self._name, self._options = fun, plain, name, options
        self._own: tuple[Sequence[Any], Sequence[Any]] = ((), ())  # `fun`'s own shardings

    def make(
        self, call: Call, args: Sequence[Any], kwargs: dict[str, Any], known: Plan | None = None
    ) -> tuple[Plan, Traced]:
        """The plan of a call; with `known`, that of the same program, again.

        Of several numbers of microbatches the first that fits is taken; if it fits only with parts
        computed again, the next one may be faster and is looked at, too.
        """
        o = self._options
        if known is None and o.plan_on == "first" and spans_processes(o.mesh):
            made: list[tuple[Plan, Traced]] = []

            def here() -> Plan:
                made.append(self._cached(call, args, kwargs))
                return made[0][0]

            found = plan_first(here)
            return made[0] if isinstance(found, Plan) else self._best(call, args, kwargs, found)
        if known is None:
            return self._cached(call, args, kwargs)
        return self._best(call, args, kwargs, saved_plan(known))

    def _fixed(
        self, call: Call, traced: Traced, module: Module, follow: Plan | None
    ) -> list[Action]:
        """Shardings that the user fixed, as actions on a form of the program."""
        o = self._options
        leaves = (call.args, o.in_shardings), (traced.out_tree, o.out_shardings)
        follows = following_wishes(module, follow) if follow else []
        tied = dataclasses.replace(module, ties=traced.module.ties)
        return fixed_actions(tied, self._mesh(module), o.mesh, *leaves, follows, self._own)

    def _cached(
        self, call: Call, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> tuple[Plan, Traced]:
        """The plan on disk, or one that is stored there."""
        given, o = self._saved(), self._options
        if given or not o.cache:
            return self._best(call, args, kwargs, given)
        traced = self._trace(call, args, kwargs, o.microbatches[0])
        path = o.cache.path(traced.module, o.shape, o.facts())
        if saved := o.cache.load(path):
            try:
                return self._best(call, args, kwargs, saved, {o.microbatches[0]: traced})
            except ValueError as error:
                warnings.warn(f"{path} cannot be replayed: {error}; planned again", stacklevel=2)
        plan, found = self._best(call, args, kwargs, None, {o.microbatches[0]: traced})
        if plan.fits:
            o.cache.store(path, plan)
        return plan, found

    def _best(
        self,
        call: Call,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        saved: SavedPlan | None,
        traces: Mapping[int, Traced] = MappingProxyType({}),
    ) -> tuple[Plan, Traced]:
        best: tuple[Plan, Traced] | None = None
        for parts in (saved.microbatches,) if saved else self._options.microbatches:
            begin = time.perf_counter()
            donated = best[1].donated if best else None
            traced = traces.get(parts) or self._trace(call, args, kwargs, parts, donated)
            spent = time.perf_counter() - begin
            fits = False
            for module in self._forms(traced.module, saved):
                plan = self._make(call, traced, module, parts, saved)
                plan.seconds["trace and import"] = spent
                fits |= plan.fits and not plan.remat
                if best is None or _rank(plan) < _rank(best[0]):
                    best = plan, traced
            if fits:
                break
        assert best is not None
        warn_uneven(best[0], self._options)
        return best

    def known_plans(
        self, call: Call, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> dict[str, Plan]:
        """The known strategies as plans."""
        parts = self._options.microbatches[0]
        traced = self._trace(call, args, kwargs, parts)
        planner, pads, _ = self._aligned(self._planner(traced.module))
        limit = planner.memory_limit
        return {
            name: self._plan(planner.replay(actions), traced, limit, parts=parts, pads=pads)
            for name, actions in planner.known_actions().items()
        }

    def _trace(
        self,
        call: Call,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        parts: int,
        donated: tuple[bool, ...] | None = None,
    ) -> Traced:
        """The call traced in so many parts; `donated` as in `Traced`, if it is known already."""
        traced = self._traced(call, args, kwargs, parts, donated)
        module = with_groups(traced.module, self._options.groups)
        return dataclasses.replace(traced, module=module)

    def _traced(
        self,
        call: Call,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        parts: int,
        donated: tuple[bool, ...] | None,
    ) -> Traced:
        said = self._options.trip_counts
        if parts == 1:
            if isinstance(self._fun, jax.stages.Wrapped):  # before `trace_call` drops jax's trace
                self._own = own_shardings(self._plain, call, args, kwargs)
            return trace_call(self._plain, call, args, kwargs, self._name, trip_counts=said)
        dynamic = of_dynamic(self._fun, call, args, kwargs)
        split = jax.jit(lambda *a, **k: accumulate(dynamic, parts, call.names, a, k))
        if donated is None:
            donated = donated_leaves(self._plain, call, args, kwargs)
        return trace_call(split, call, call.args, call.kwargs, self._name, donated, said)

    def _planner(self, module: Module) -> Planner:
        o = self._options
        return Planner(module, self._mesh(module), o.machine, goals=o.goals, streams=o.rings)

    def _mesh(self, module: Module) -> MeshShape:
        """The mesh, with axes split where shardings on other meshes are fixed."""
        o = self._options
        return fixed_mesh(module, o.shape, o.mesh, (o.in_shardings, o.out_shardings, self._own))

    def _forms(self, module: Module, saved: SavedPlan | None) -> list[Module]:
        """The program as it is, with each attention as one op, or both to choose from."""
        given = self._options.schedule
        tactics = () if given is None or isinstance(given, Plan | SavedPlan) else given
        wanted = any(isinstance(t, ContextParallel) for t in tactics)
        if not (saved.attention if saved else wanted or self._options.rings):
            return [module]
        found, reasons = with_attention(module, RuleTable())
        if wanted and found is module:
            raise ValueError(
                "ContextParallel: the program has no attention that can go over its keys block by"
                " block: a product, masks, a softmax over keys, a product"
                + "".join(f"; {r}" for r in reasons[:3])
            )
        if saved or wanted:
            return [found]
        return [module] if found is module else [module, found]

    def _make(
        self, call: Call, traced: Traced, module: Module, parts: int, saved: SavedPlan | None
    ) -> Plan:
        o = self._options
        attention = module is not traced.module

        def fixed(module: Module) -> list[Action]:
            return self._fixed(call, traced, module, o.follow)

        def search(
            module: Module, hints: Sequence[Action] = (), goals: Sequence[Goal[Cost]] = ()
        ) -> Planned:
            planner = self._planner(module)
            planner.goals = (*planner.goals, *goals)
            return self._run(planner, fixed(module), hints)

        def replay(module: Module, actions: Sequence[Action]) -> Planned:
            return self._planner(module).replay_compatible(actions)[0]

        module = untied(module, saved.actions if saved else fixed(module))
        planner = self._planner(module)
        warn_opaque(planner)
        warn_of_constraints(module, self._mesh(module), self._options.mesh)
        warn_constants(module)
        limit, remat, pads = planner.memory_limit, tuple[Range, ...](), tuple[Pad, ...]()
        if saved is not None:
            changed = changes(saved, traced.module)
            if changed and saved.on_change == "raise":
                remedy = "plan again with schedule=None, or load_plan(..., on_change='apply')"
                raise ValueError(f"{changed}; {remedy}")
            check_mesh(saved, planner.mesh)
            if not changed:
                pads, remat = saved.padding, saved.remat
            if pads:
                planner = self._planner(pad_module(module, planner.graph.rules, pads))
            planner = self._planner(rematerialize(planner.module, remat)) if remat else planner
            if changed:
                planned, dropped = planner.replay_compatible(saved.actions)
                warn_changed(changed, dropped)
            else:
                planned = _replay(planner, saved)
        else:
            uneven = find_pads(module, planner.graph.rules, planner.mesh) if o.pad else ()
            plain = planner
            planner, pads, uneven = self._aligned(plain, uneven)
            module = planner.module
            hints: Sequence[Action] = ()
            if uneven or o.remat is not True:
                planned = self._run(planner, fixed(module))
                if uneven and planned.reports:
                    both = pads, uneven
                    planned, module, pads = self._padded(plain, planner, planned, fixed, *both)
                hints = planned.actions if planned.reports else ()
            if o.remat is True:
                remat = tuple(find_segments(module))
                planned = search(rematerialize(module, remat), hints)
            elif o.remat == "auto" and planned.reports and planned.cost.peak_bytes > limit:
                score = scorer(planner.goals)
                planned, remat = relieve(
                    module, planned, limit, search, replay, lambda cost: score(cost).objective
                )
        return self._plan(planned, traced, limit, remat, parts, pads, attention)

    def _aligned(
        self, planner: Planner, uneven: tuple[Pad, ...] = ()
    ) -> tuple[Planner, tuple[Pad, ...], tuple[Pad, ...]]:
        """A planner of the program with its stencils' dims padded to those of the grid, what was
        padded, and what is left of `uneven`.
        """
        module, rules = planner.module, planner.graph.rules
        pads = find_aligned(module, rules, self._options.shape) if self._options.pad else ()
        if not pads:
            return planner, (), uneven
        left = apart(module, rules, pads, uneven) if uneven else ()
        return self._planner(pad_module(module, rules, pads)), pads, left

    def _padded(
        self,
        plain: Planner,
        planner: Planner,
        planned: Planned,
        fixed: Callable[[Module], list[Action]],
        pads: tuple[Pad, ...],
        uneven: tuple[Pad, ...],
    ) -> tuple[Planned, Module, tuple[Pad, ...]]:
        """The better of a plan, which has `pads`, and one with its uneven dims padded as well."""
        padded = pad_module(plain.module, plain.graph.rules, (*pads, *uneven))
        other = self._planner(padded)
        hints = planned.actions if other.mesh == planner.mesh else ()
        found = self._run(other, fixed(padded), hints)
        score = scorer(planner.goals)
        if score(found.cost) < score(planned.cost):
            return found, padded, (*pads, *uneven)
        return planned, planner.module, pads

    def _plan(
        self,
        planned: Planned,
        traced: Traced,
        limit: float,
        remat: tuple[Range, ...] = (),
        parts: int = 1,
        pads: tuple[Pad, ...] = (),
        attention: bool = False,
    ) -> Plan:
        o = self._options
        return Plan(
            planned,
            mesh=o.here,
            machine=o.machine,
            in_tree=traced.in_tree,
            out_tree=traced.out_tree,
            seed=o.seed,
            original=traced.module,
            remat=remat,
            microbatches=parts,
            padding=pads,
            attention=attention,
            memory_limit=limit,
            remedies=remedies_of,
        )

    def _saved(self) -> SavedPlan | None:
        """The plan to replay, if that is the schedule."""
        given = self._options.schedule
        if isinstance(given, Plan):
            return saved_plan(given)
        return given if isinstance(given, SavedPlan) else None

    def _run(
        self,
        planner: Planner,
        fixed: Sequence[Action],
        hints: Sequence[Action] = (),
    ) -> Planned:
        o = self._options
        assert not isinstance(o.schedule, Plan | SavedPlan)
        default = () if o.follow else (AutomaticPartition(),)
        schedule = list(default if o.schedule is None else o.schedule)
        automatic = any(isinstance(t, AutomaticPartition) for t in schedule)
        with search_progress(o.progress if automatic else False, o.episodes) as progress:

            def run(planner: Planner, fixed: Sequence[Action]) -> Planned:
                return planner.run(
                    schedule,
                    fixed=fixed,
                    episodes=o.episodes,
                    seed=o.seed,
                    progress=progress,
                    hints=hints,
                )

            return plan_unwatched(planner, fixed, run, self._planner)


def _replay(planner: Planner, saved: SavedPlan) -> Planned:
    try:
        return planner.replay(saved.actions)
    except ValueError as error:
        if saved.mesh.user == planner.mesh.user:
            raise
        raise ValueError(
            f"the saved plan is for mesh<{saved.mesh}>, this is mesh<{planner.mesh}>, where it"
            f" does not hold: {error}; plan again with schedule=None"
        ) from error


def _rank(plan: Plan) -> tuple[bool, float]:
    return not plan.fits, plan.cost.seconds if plan.fits else plan.cost.peak_bytes
