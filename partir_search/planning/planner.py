"""Planner of a module: runs tactics and searches."""

from __future__ import annotations

import collections
import copy
import dataclasses
import functools
import math
from collections.abc import Callable, Hashable, Sequence

from partir_search.ir.argument_paths import named
from partir_search.ir.axis_options import Modes
from partir_search.ir.core import Module
from partir_search.ir.mesh import MeshShape
from partir_search.ir.printer import print_partition
from partir_search.lowering.cache import LocalCache
from partir_search.lowering.local_ir import LocalProgram
from partir_search.lowering.localize import localize
from partir_search.mcts.game import Move, Record, Score
from partir_search.mcts.goals import Fastest, Fit, Goal, memory_limit, scorer
from partir_search.mcts.search import Result
from partir_search.plan.evaluation import Evaluated
from partir_search.plan.planned import Planned, SearchReport
from partir_search.plan.search_space import SearchSpace
from partir_search.plan.serialization import fingerprint
from partir_search.planning.answers_in_space import answers_in_space
from partir_search.planning.answers_unsplit import answers_unsplit
from partir_search.planning.axis_modes import choose_modes
from partir_search.planning.checks.schedule import check_schedule
from partir_search.planning.clock import Clock
from partir_search.planning.exact_answer import EXACT_STARTS, ExactAnswer, exact_moves
from partir_search.planning.fold_limits import Finalist, choose_assigned, choose_within, competing
from partir_search.planning.fold_models import FoldModels, fold_models
from partir_search.planning.front.visited import visited_states
from partir_search.planning.game import PlanningGame
from partir_search.planning.interruption import FarBehind, SearchJournal, check_starts, search_noted
from partir_search.planning.spreading import begin
from partir_search.planning.stage import print_module
from partir_search.planning.strategy_costs import StrategyCosts
from partir_search.planning.tactics import AutomaticPartition, Tactic
from partir_search.planning.unfold import apply_to_fold, marks_of, project_to_fold
from partir_search.propagation.actions import Action
from partir_search.propagation.apply import apply_compatible, replay
from partir_search.propagation.graph import Graph
from partir_search.propagation.memo import PropagationMemo
from partir_search.propagation.state import State
from partir_search.propagation.sub_axes import split_into_sub_axes
from partir_search.rules.registry import RuleTable
from partir_search.simulator.cost import Cost
from partir_search.simulator.program_analysis import ProgramAnalysis, analyse_program
from partir_search.simulator.simulator import CostModel
from partir_search.simulator.target.machine import Machine
from partir_search.strategies.argument_roles import Roles, find_roles
from partir_search.strategies.catalogue import named_strategies
from partir_search.strategies.moves import TileStacks
from partir_search.strategies.targets import StrategyTargets

DEFAULT_EPISODES = 1000
FINALISTS = 4  # answers of the folded search evaluated on the unfolded program, at most

Progress = Callable[[Record], None]
Kept = collections.deque[tuple[bytes, Modes, LocalProgram, Cost]]


class Planner:
    """Plans one module on one mesh and machine.

    Attributes:
      mesh: the user's mesh, with axes split into sub-axes if too large for some dims.
    """

    def __init__(
        self,
        module: Module,
        mesh: MeshShape,
        machine: Machine,
        table: RuleTable | None = None,
        goals: Sequence[Goal[Cost]] | None = None,
        streams: bool = False,
        stage_axes: Sequence[str] = (),
    ) -> None:
        """A planner of `module`.

        Args:
          module: the program.
          mesh: the user's mesh, with diagonals.
          machine: hardware figures.
          table: rules; default: all registered rules.
          goals: limits and objectives; default: fit in memory, then the fewest seconds.
          streams: True lets searches partition in time and choose axis modes at the end.
          stage_axes: axes of the stages of a pipeline, never split into sub-axes.
        """
        self.streams, self.stage_axes = streams, stage_axes
        self.module, self.machine = module, machine
        self.beat: Score | None = None  # by a plan of another form, in searches
        self.rival = math.inf  # seconds that a known strategy reaches, or no search is run
        self.goals = goals if goals is not None else (Fit(machine.hbm_bytes), Fastest())
        self._clock = Clock()
        self.table = table or RuleTable()
        with self._clock.timed("graph"):
            self.graph = Graph(module, self.table, contract=True)
            self.mesh = split_into_sub_axes(self.graph, mesh, stage_axes)
        self.cache = LocalCache(machine.traits)
        self.memo: PropagationMemo = {}
        self._model: CostModel | None = None
        # The latest fold by its marks, which tactics on further axes and known strategies share.
        self._fold: tuple[Hashable, FoldModels] | None = None
        self._last: Kept = collections.deque(maxlen=FINALISTS + 1)
        self.strategy_costs = StrategyCosts()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the user's axes and diagonals."""
        return self.mesh.user.names + self.mesh.diagonal_names

    @functools.cached_property
    def analysis(self) -> ProgramAnalysis:
        """Analyses of the unfolded program."""
        return analyse_program(self.module, self.graph.rules, self.machine)

    @functools.cached_property
    def roles(self) -> Roles:
        """Roles of the program's arguments."""
        return find_roles(self.module)

    @property
    def model(self) -> CostModel:
        """Cost model of the unfolded program."""
        if self._model is None:
            self._model = CostModel(
                self.module, self.graph.rules, self.machine, analysis=self.analysis
            )
        return self._model

    def run(
        self,
        schedule: Sequence[Tactic],
        *,
        fixed: Sequence[Action] = (),
        episodes: int = DEFAULT_EPISODES,
        seed: int = 0,
        progress: Progress | None = None,
        hints: Sequence[Action] = (),
        journal: SearchJournal | None = None,
    ) -> Planned:
        """Applies the actions `fixed` (the user's shardings), then the schedule.

        Args:
          schedule: tactics in order.
          fixed: actions applied first.
          episodes: default episodes per search.
          seed: seed of the searches.
          progress: callback with the search's record after each episode.
          hints: actions of a plan for a similar program, as a further start of searches.
          journal: receives the searches' answers; one of a stopped planning is completed.
        """
        check_schedule(schedule, self.module, self.mesh)
        state, actions = begin(self.graph, self.mesh, self.memo, fixed, schedule)
        targets = StrategyTargets(self.graph, self.roles)
        reports: list[SearchReport] = []
        for tactic in schedule:
            if isinstance(tactic, AutomaticPartition):
                found, report = self._search(
                    tactic, actions, tactic.episodes or episodes, seed, progress, hints, journal
                )
                reports.append(report)
                for action in found:
                    action.apply(state)
                actions += found
            else:
                actions += tactic.actions(self.graph, state, targets)
        if reports and not isinstance(schedule[-1], AutomaticPartition):
            reports[-1] = dataclasses.replace(reports[-1], space=None)  # later tactics depend on it
        if self.streams and reports:
            actions += choose_modes(state, self.graph.rules, self._scored)
        return self.finish(state, actions, reports)

    def replay(self, actions: Sequence[Action], fixed: Sequence[Action] = ()) -> Planned:
        """Applies the actions of a plan, then the user's shardings `fixed`."""
        state = State(self.graph, self.mesh)
        return self.finish(state, replay(state, actions, fixed))

    def replay_compatible(
        self, actions: Sequence[Action]
    ) -> tuple[Planned, list[tuple[Action, str]]]:
        """Applies the legal actions of a plan; returns the remaining actions with reasons."""
        state = State(self.graph, self.mesh)
        played, dropped = apply_compatible(state, actions)
        return self.finish(state, played, []), dropped

    def finish(
        self, state: State, actions: Sequence[Action], reports: Sequence[SearchReport] = ()
    ) -> Planned:
        """Planned program of a state reached by `actions`."""
        with self._clock.timed("unfold"):
            program, cost = self.costed(state)
        ops = len(self.module.ops)
        text = functools.partial(print_partition, program.partition, full=True)
        self._clock.record("unfold", ops, ops, text, "finalists")
        return Planned(
            actions=tuple(actions),
            evaluation=Evaluated(self.graph, program, self.model, cost),
            cache=self.cache,
            reports=tuple(reports),
            seconds=self._clock.seconds,
            searched=self._clock.taken(),
        )

    def _scored(self, state: State) -> Score:
        return scorer(self.goals)(self.costed(state)[1])

    def costed(self, state: State) -> tuple[LocalProgram, Cost]:
        """Device-local program and cost of a state.

        The latest results are cached, as the choice of a search is evaluated again in `finish`.
        """
        key = state.key()
        for known, modes, program, cost in self._last:
            if known == key and modes == state.modes:
                return program, cost
        program = localize(state.partition(self.cache.rows), self.cache, sparse=True)
        cost = self.model.evaluate(program, cache=self.cache)
        self._last.append((key, state.modes, program, cost))
        return program, cost

    # Search ------------------------------------------------------------------------------------

    def _search(
        self,
        tactic: AutomaticPartition,
        before: Sequence[Action],
        episodes: int,
        seed: int,
        progress: Progress | None,
        hints: Sequence[Action] = (),
        journal: SearchJournal | None = None,
    ) -> tuple[list[Action], SearchReport]:
        names = tactic.axes or self.names
        with self._clock.timed("fold"):
            models, game = self.game(names, before, tactic.exclude)
        journal, folded = journal or SearchJournal(), models.folded
        kept = journal.begin((fingerprint(folded.module), *names, *before, *tactic.exclude))
        ops, small = len(self.module.ops), len(folded.module.ops)
        self._clock.record("fold", ops, small, lambda: print_module(folded.module))
        known = named_strategies(self.mesh, names, game.targets, self.streams, self.stage_axes)
        starts = [*(moves for _, moves in known), project_to_fold(hints, folded, self.module, game)]
        if starts[-1] and game.targets.stacks:
            given = (n for n in names if n not in self.mesh.diagonal_names)
            starts.append((TileStacks(self.mesh.axes("+".join(given))), *starts[-1]))
        with self._clock.timed("known strategies"):
            if not self.mesh.diagonals:  # answers without rings would be starts too
                check_starts(game, [*starts, *kept], episodes)
            costs = self.strategy_costs(game, known, before, tactic.exclude)
        if min((cost.seconds for cost in costs.values()), default=0.0) > self.rival:
            raise FarBehind
        with self._clock.timed("exact steps"):
            named = zip(("hints", "stacked hints"), starts[len(known) :], strict=False)
            wanted, space = 0 if journal.completes else episodes, (names, before, tactic.exclude)
            in_space: Sequence[tuple[Move, ...]] = ()
            if self.mesh.diagonals:  # rings are not pairwise
                exact, in_space = answers_in_space(self, *space, wanted, seed, progress)
                kept += in_space
            else:
                exact = exact_moves(game, [*known, *named], episodes=wanted)
                if exact.bound is None:  # of too many labels, along sub-axes
                    exact = answers_unsplit(self, game, exact, *space, wanted)
        with self._clock.timed("search"):
            paths = [*starts, *((move,) for move in exact.moves[:EXACT_STARTS]), *kept]
            ends = {"settled": exact.settled, "completes": journal.completes}
            left = 1 if exact.proven and not self.streams else episodes  # small spaces in any case
            result = search_noted(game, left, seed, paths, progress, found=kept, **ends)
        found = [game.describe(move) for move in result.best.path]
        self._clock.record("search", small, small, lambda: "\n".join(found))
        visited = visited_states(game, result.paths, ops)
        game.clear_caches()
        with self._clock.timed("finalists"):
            best = self.finalist(game, models, before, result, starts, exact, in_space[:1])
        report = SearchReport(
            axes=tuple(names),
            known=tuple(costs.items()),
            cost=best.cost,
            proven=result.proven,
            episodes=result.evaluations,
            states=result.states,
            history=result.history,
            tree=result.tree,
            moves={m: game.describe(m) for moves in result.tree.children for m in moves},
            lower_bound=exact.lower_bound,
            before=tuple(before),
            exclude=tuple(tactic.exclude),
            space=SearchSpace(tuple(names), tuple(before), tuple(tactic.exclude)),
            visited=visited,
        )
        return [*best.actions], report

    @property
    def memory_limit(self) -> float:
        """Bytes per device allowed by the goals; infinite without a `Fit` goal."""
        return memory_limit(self.goals)

    def on_mesh(self, mesh: MeshShape, *, split: bool = True) -> Planner:
        """Planner of the program on another mesh, with the same graph, analyses and fold."""
        other = copy.copy(self)
        other.mesh = split_into_sub_axes(self.graph, mesh, self.stage_axes) if split else mesh
        other.cache, other.memo = LocalCache(self.machine.traits), {}
        other._clock, other._last = Clock(), collections.deque(maxlen=FINALISTS + 1)
        other.strategy_costs = StrategyCosts()
        return other

    def game(
        self, axes: Sequence[str], before: Sequence[Action] = (), exclude: Sequence[str] = ()
    ) -> tuple[FoldModels, PlanningGame]:
        """Folds the program, and builds the game for a search over `axes`.

        Args:
          axes: axis names available to moves.
          before: actions applied before the game starts.
          exclude: globs of arguments excluded from moves.
        """
        left = [v.id for glob in exclude for _, v in named(self.module, glob)]
        marks = marks_of(self.module, before) | dict.fromkeys(left, "left")
        key = frozenset(marks.items())
        if self._fold is None or self._fold[0] != key:
            self._fold = (
                key,
                fold_models(
                    self.module, marks, self.table, self.graph, self.machine, self.analysis
                ),
            )
        models = self._fold[1]
        folded, game = models.folded, self._game(models, before, axes)
        game.state.frozen = {game.graph.class_of[folded.class_of[v]] for v in left}
        return models, game

    def _game(
        self, models: FoldModels, before: Sequence[Action], names: Sequence[str]
    ) -> PlanningGame:
        folded, graph, model = models.folded, models.graph, models.model
        state = State(graph, self.mesh)
        apply_to_fold(before, folded, self.module, state)
        targets = StrategyTargets(graph, self.roles.of(folded.class_of))
        goal = scorer(self.goals)
        return PlanningGame(graph, self.mesh, model, names, goal, state, targets, self.beat)

    def finalist(
        self,
        game: PlanningGame,
        models: FoldModels,
        before: Sequence[Action],
        result: Result,
        starts: Sequence[Sequence[Move]],
        exact: ExactAnswer,
        further: Sequence[tuple[Move, ...]] = (),
    ) -> Finalist:
        """The best answer of a search by the whole program, and of `further` answers."""
        paths = competing(game, result, starts, exact, FINALISTS, contexts=self.streams)
        paths += further
        state = State(self.graph, self.mesh, memo=self.memo)
        for action in before:
            action.apply(state)

        def unfold(path: tuple[Move, ...]) -> tuple[Cost, tuple[tuple[Move, ...], list[Action]]]:
            actions, _, cost = self.lifted(models, game, path, state)
            return cost, (path, actions)

        def assigned(path: tuple[Move, ...]) -> Cost:
            with models.lifter.assigned(game, path, state):
                return self.costed(state)[1]

        if self.streams or not models.lifter.covers:
            trusts = not self.streams
            cost, found = choose_within(game, paths, result, exact, unfold, trust_ranks=trusts)
        else:
            cost, found = choose_assigned(game, paths, result, exact, assigned, unfold)
        return Finalist(cost, *found)

    def lifted(
        self, models: FoldModels, game: PlanningGame, path: Sequence[Move], state: State
    ) -> tuple[list[Action], list[Action], Cost]:
        """Lifts a path of moves to the unfolded program.

        Args:
          models, game: the fold, and a game on its program.
          path: moves from the game's first state.
          state: state of the unfolded program after the decisions before the game; restored.

        Returns:
          Actions of the moves, modes that improve the score after the actions, and the cost.
        """
        start, before = state.key(), state.modes
        actions, modes = models.lifter.lift(game, path, state), list[Action]()
        if self.streams:
            modes = choose_modes(state, self.graph.rules, self._scored)
        cost = self.costed(state)[1]
        state.restore(start)
        state.modes = before
        return actions, modes, cost
