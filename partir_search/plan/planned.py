"""Result of planning: a module with applied actions, and search reports."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from partir_search.ir.core import Module
from partir_search.ir.mesh import MeshShape
from partir_search.lowering.cache import LocalCache
from partir_search.lowering.local_ir import LocalProgram
from partir_search.lowering.local_printer import print_local
from partir_search.lowering.localize import localize
from partir_search.lowering.scheduling.schedule import schedule_for
from partir_search.mcts.game import Move, Score
from partir_search.mcts.tree import Tree
from partir_search.messages.renamed import warn_renamed
from partir_search.plan.confirmation import Confirmation
from partir_search.plan.evaluation import Evaluation
from partir_search.plan.lower_bound import LaterBound, LowerBound, found_in_full
from partir_search.plan.pass_record import PassRecord
from partir_search.plan.plan_bound import PlanBound
from partir_search.plan.search_space import NOTHING_VISITED, SearchSpace, Visited
from partir_search.propagation.actions import Action
from partir_search.propagation.apply import apply_all
from partir_search.propagation.graph import Graph
from partir_search.propagation.state import State
from partir_search.simulator.cost import Cost
from partir_search.simulator.simulator import CostModel

MANY_OBJECTS = 50_000  # new objects that a run of the collector would visit for milliseconds


@dataclasses.dataclass(frozen=True, slots=True)
class SearchReport:
    """Report on the search of an automatic tactic.

    Attributes:
      axes: mesh axes of the tactic.
      known: (name, cost) of each known strategy, on the folded program.
      cost: cost of the answer, on the folded program for comparison with `known`.
      proven: True if the whole space was enumerated: the answer is optimal in the space.
      episodes: episodes played.
      states: distinct states evaluated.
      history: (episode, score) at each improvement.
      tree: the search tree; moves are decisions on the folded program.
      moves: text of each move in the tree.
      lower_bound: of the seconds of all plans of the space, found or found at first access; None
        if costs are not pairwise, or seconds are no goal.
      before: actions applied before the search.
      exclude: globs of arguments excluded from the search.
      space: the space of the search; None if later tactics build on the answer.
      visited: nondominated states of the search.
      plain: True for a search on the program without the plan's recomputation.
    """

    axes: tuple[str, ...]
    known: tuple[tuple[str, Cost], ...]
    cost: Cost
    proven: bool
    episodes: int
    states: int
    history: tuple[tuple[int, Score], ...]
    tree: Tree
    moves: Mapping[Move, str]
    lower_bound: LowerBound | LaterBound | None = None
    before: tuple[Action, ...] = ()
    exclude: tuple[str, ...] = ()
    space: SearchSpace | None = None
    visited: Visited = NOTHING_VISITED
    plain: bool = False

    @property
    def bound(self) -> float | None:
        """Lower bound of the seconds of all plans of the space, on the folded program, or None.

        The first access may find the bound in full, in a part of the time of the search.
        """
        found = self._found_bound
        return found.seconds if found else None

    @property
    def bound_without(self) -> tuple[str, ...]:
        """Decisions that no plan below the bound may have, as in `PlanBound.without`."""
        found = self._found_bound
        return found.without if found else ()

    @property
    def _found_bound(self) -> LowerBound | None:
        with collector_paused():
            return found_in_full(self.lower_bound)

    @property
    def experts(self) -> tuple[tuple[str, Cost], ...]:
        """Deprecated name of `known`."""
        warn_renamed("SearchReport.experts", "known")
        return self.known


@dataclasses.dataclass(eq=False)
class Planned:
    """A module with applied actions.

    Attributes:
      actions: decisions, in order.
      evaluation: the program under the decisions, with its cost.
      cache: cache of localized ops, shared by variants of the plan.
      reports: one report per automatic tactic.
      seconds: wall time of planning, by phase.
      searched: records of the passes from the fold to the unfolded actions.
      saved_bound / saved_space: bound and space of the search that found the replayed actions.
      saved_confirmation: choice by a compiler that the replayed actions come from.
      peak_without_remat: peak of the same actions with no segment recomputed; None if unknown.
    """

    actions: tuple[Action, ...]
    evaluation: Evaluation
    cache: LocalCache
    reports: tuple[SearchReport, ...]
    seconds: dict[str, float]
    searched: tuple[PassRecord, ...] = ()
    saved_bound: PlanBound | None = None
    saved_space: SearchSpace | None = None
    saved_confirmation: Confirmation | None = None
    peak_without_remat: float | None = None

    @property
    def module(self) -> Module:
        """The program."""
        return self.evaluation.module

    @property
    def graph(self) -> Graph:
        """Propagation graph of the program."""
        return self.evaluation.graph

    @property
    def mesh(self) -> MeshShape:
        """The mesh, with diagonals and sub-axes."""
        return self.evaluation.mesh

    @property
    def sketch(self) -> LocalProgram:
        """The device-local program without the ops that need no communication."""
        return self.evaluation.sketch

    @property
    def model(self) -> CostModel:
        """The cost model."""
        return self.evaluation.model

    @property
    def cost(self) -> Cost:
        """Simulated cost per step on one device."""
        return self.evaluation.cost

    @property
    def most_peak_bytes(self) -> float:
        """Upper bound of the simulated peak, without a simulation if one is known."""
        return self.evaluation.most_peak_bytes

    def bounded_with(self, other: Planned, rewrites: str) -> Planned:
        """The plan with the bound of another form of the program, unless the own search has one.

        Args:
          other: plan of the program without rewrites of this one.
          rewrites: name of the rewrites, as in `PlanBound.without`.
        """
        if len(self.reports) != 1 or len(other.reports) != 1:
            return self
        (report,), (known,) = self.reports, other.reports
        own, others = report.lower_bound, known.lower_bound
        if isinstance(own, LowerBound) or others is None:
            return self

        def find() -> LowerBound | None:
            if (found := found_in_full(own)) is not None:
                return found
            found = found_in_full(others)
            return found and LowerBound(found.seconds, (rewrites, *found.without))

        report = dataclasses.replace(report, lower_bound=LaterBound(find))
        return dataclasses.replace(self, reports=(report,))

    @functools.cached_property
    def state(self) -> State:
        """State after the actions, with the cause of every tiling. Built on first access."""
        state = State(self.graph, self.mesh, record=True)
        apply_all(state, self.actions)
        return state

    @functools.cached_property
    def _local(self) -> tuple[LocalProgram, tuple[PassRecord, ...]]:
        begin = time.perf_counter()
        program = localize(self.sketch.partition, self.cache)
        seconds, ops = time.perf_counter() - begin, len(self.module.ops)
        records = [PassRecord("local", seconds, ops, program.size, _text(program))]
        begin = time.perf_counter()

        def observe(name: str, after: LocalProgram) -> None:
            nonlocal begin
            seconds, before = time.perf_counter() - begin, records[-1].ops_after
            records.append(PassRecord(name, seconds, before, after.size, _text(after)))
            begin = time.perf_counter()

        return schedule_for(program, self.cache.traits, observe), tuple(records)

    @property
    def program(self) -> LocalProgram:
        """The full device-local program, for emission. Built on first access."""
        return self._local[0]

    @property
    def passes(self) -> tuple[PassRecord, ...]:
        """Records of the passes from the fold to the device-local program."""
        return (*self.searched, *self._local[1])


def _text(program: LocalProgram) -> Callable[[], str]:
    return functools.partial(print_local, program)


def with_search(planned: Planned, found: Planned, reports: Sequence[SearchReport]) -> Planned:
    """Copy of `planned` with the record of a search on another form of the program.

    Args:
      planned: the plan to return.
      found: result of the search.
      reports: the search's reports, as far as valid for `planned`.
    """
    passes = tuple(p for p in found.searched if p.name in ("fold", "search"))
    return dataclasses.replace(
        planned,
        reports=tuple(reports),
        seconds=found.seconds,
        searched=(*passes, *planned.searched),
    )


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Pauses Python's cyclic garbage collector, which costs a sixth of planning time.

    Planning allocates millions of small objects and almost no cycles. The collector takes the new
    objects for old ones afterwards: else its next run would visit all of them.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            if gc.get_count()[0] > MANY_OBJECTS and not gc.get_freeze_count():
                gc.freeze()
                gc.unfreeze()  # to the oldest generation
            gc.enable()
