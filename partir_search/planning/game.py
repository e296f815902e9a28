"""The partitioning game: the interface between search and compiler.

A state is a set of tilings on the folded, contracted graph; a move is one decision or a known
strategy; the score is the simulated cost of the device-local program.
"""

from __future__ import annotations

import dataclasses
import math
import random
from array import array
from collections.abc import Hashable, Sequence

from partir_search.ir.mesh import MeshShape
from partir_search.lowering.cache import LocalCache
from partir_search.lowering.localize import localize
from partir_search.mcts.game import Move, Score, play, rewind
from partir_search.mcts.goals import Scorer
from partir_search.propagation.graph import Graph
from partir_search.propagation.state import State
from partir_search.simulator.cost import Cost
from partir_search.simulator.simulator import CostModel, DeviceLoad
from partir_search.strategies.decisions import Axes, Decision, TileClass
from partir_search.strategies.moves import (
    DataParallel,
    EdgeParallel,
    ExpertParallel,
    ModelParallel,
    RingParallel,
    SequenceParallel,
    StrategyMove,
    TileAlike,
    TileStacks,
    Zero,
)
from partir_search.strategies.targets import StrategyTargets

MAX_INTERIOR = 16  # interior classes with moves, the largest by bytes
# Probabilities of the kinds of moves: strategies, tilings of one matrix, and tilings of vectors and
# interior values. Drawn uniformly, hundreds of the last would crowd out a few of the first.
SHARES = (0.45, 0.45, 0.1)


@dataclasses.dataclass(eq=False, slots=True)
class PlanningGame:
    """`Game` over a propagation graph.

    Attributes:
      graph: graph of the folded program.
      mesh: the mesh, with sub-axes and diagonals.
      model: cost model of the folded program.
      axes: names of the user's mesh axes (and diagonals) available to moves.
      goal: scorer of costs.
      state: current tilings. The initial tilings are never undone.
      targets: classes and dims that strategies tile.
      beat: score of a plan of another form of the program; a search far behind ends early.
      cache: localized ops, shared by all states.
      costs: cost by state number.
    """

    graph: Graph
    mesh: MeshShape
    model: CostModel
    axes: Sequence[str]
    goal: Scorer[Cost]
    state: State
    targets: StrategyTargets
    beat: Score | None = None
    cache: LocalCache = dataclasses.field(init=False)
    costs: dict[int, Cost] = dataclasses.field(default_factory=dict)
    _candidates: Sequence[Sequence[StrategyMove]] = ()  # by kind, as in SHARES
    # States are numbered on first visit. Searches repeat moves in the same states: `_after` caches
    # successors.
    _ids: dict[bytes, int] = dataclasses.field(default_factory=dict)
    _keys: list[bytes] = dataclasses.field(default_factory=list)
    _after: dict[tuple[int, Move], int] = dataclasses.field(default_factory=dict)
    _legal: dict[int, Sequence[Sequence[Move]]] = dataclasses.field(default_factory=dict)
    _here: int = 0
    _before: list[int] = dataclasses.field(default_factory=list)  # states before each move
    _loaded: tuple[int, DeviceLoad | None] = (-1, None)  # (state number, load) of the latest state

    def __post_init__(self) -> None:
        self.cache = LocalCache(self.model.machine.traits)
        self._candidates = self._find_candidates()
        self._here = self._met()

    def _met(self) -> int:
        """Number of the current state; new states are numbered consecutively."""
        key = self.state.key()
        number = self._ids.setdefault(key, len(self._keys))
        if number == len(self._keys):
            self._keys.append(key)
        return number

    def _find_candidates(self) -> Sequence[Sequence[StrategyMove]]:
        shapes, roles = self.graph.shapes, self.targets.roles
        padded = tuple(c for forms in self.targets.padded.values() for c in forms)
        arguments = list(dict.fromkeys(roles.data + roles.parameters + padded))
        if len(roles.optimizer) <= 8:  # few optimizer arrays: a move for each
            arguments += roles.optimizer
        arguments += self.targets.stacks
        taken = set(arguments) | set(roles.optimizer)
        values = self.graph.module.values
        size = {
            c: sum(values[v].type.nbytes for v in self.graph.members[c])
            for c in range(len(shapes))
            if len(shapes[c]) >= 3 and c not in taken
        }
        interior = sorted(size, key=lambda c: (-size[c], c))[:MAX_INTERIOR]
        moves, tilings = list[StrategyMove](), list[TileClass]()
        for r, c, d in self.mesh.triples:
            if set(self.axes).issuperset(self.mesh.names[a] for a in (r, c, d)):
                moves += [RingParallel((c, d)), RingParallel((r, d))]
        for axes in self._runs():
            tilings += self._tilings(axes, (*arguments, *interior))
            if axes[0] >= len(self.mesh.device_names):
                continue
            moves += [DataParallel(axes), ModelParallel(axes, True), ModelParallel(axes, False)]
            moves += [SequenceParallel(axes), Zero(axes, 2), Zero(axes, 3)]
            moves += [TileStacks(axes)] if self.targets.stacks else []
            moves += [EdgeParallel(axes)] if self.targets.edges else []
            moves += [ExpertParallel(axes)] if self.targets.experts else []
        matrices = {c for c in arguments if len(shapes[c]) >= 2}
        return (
            [*moves, *self._alike(tilings)],
            [t for t in tilings if t.cls in matrices],
            [t for t in tilings if t.cls not in matrices],
        )

    def _alike(self, tilings: Sequence[TileClass]) -> list[TileAlike]:
        """Moves with equal tilings of all parameters of the same shape."""
        parameters, alike = set(self.targets.roles.parameters), dict[Hashable, list[TileClass]]()
        for t in tilings:
            if t.cls in parameters:
                alike.setdefault((self.graph.shapes[t.cls], t.dim, t.axes), []).append(t)
        groups = [g for g in alike.values() if len(g) > 1]
        return [TileAlike(tuple(t.cls for t in g), g[0].dim, g[0].axes) for g in groups]

    def _tilings(self, axes: Axes, classes: Sequence[int]) -> list[TileClass]:
        extents, size = self.graph.extents, self.mesh.size(axes)
        return [
            TileClass(c, d, axes)
            for c in classes
            for d, n in enumerate(extents[c])
            if n and n % size == 0
        ]

    def _runs(self) -> list[tuple[int, ...]]:
        """Axes usable by one move: a whole axis, or consecutive sub-axes."""
        runs = [self.mesh.axes(name) for name in self.axes]
        for axes in list(runs):
            n = len(axes)
            runs += [axes[i:j] for i in range(n) for j in range(i + 1, n + 1) if j - i < n]
        return [run for run in runs if self.mesh.size(run) > 1]

    def moves(self) -> Sequence[Move]:
        return [m for kind in self._kinds() for m in kind]

    def _kinds(self) -> Sequence[Sequence[Move]]:
        """Legal moves of the current state, by kind as in SHARES."""
        legal = self._legal.get(self._here)
        if legal is None:
            state = self.state
            legal = self._legal[self._here] = [
                [m for m in kind if m.is_legal(state)] for kind in self._candidates
            ]
        return legal

    def draw(self, rng: random.Random) -> Move | None:
        kinds = self._kinds()
        shares = [share if k else 0.0 for k, share in zip(kinds, SHARES, strict=True)]
        if not any(shares):
            return None
        (kind,) = rng.choices(kinds, shares)
        return kind[rng.randrange(len(kind))]

    def step(self, move: Move) -> bool:
        current = self._here
        after = self._after.get((current, move))
        if after is None:
            done = move.apply(self.targets, self.state)  # type: ignore[attr-defined]
            after = self._after[current, move] = self._met() if done else current
        elif after != current:
            self.state.restore(self._keys[after])
        if after == current:
            return False
        self._before.append(current)
        self._here = after
        return True

    def undo(self) -> None:
        self._here = self._before.pop()
        self.state.restore(self._keys[self._here])

    @property
    def depth(self) -> int:
        """Number of moves played and not undone."""
        return len(self._before)

    def key(self) -> Hashable:
        return self._here

    def cost(self) -> Cost:
        """Simulated cost of the current state, cached by state."""
        cost = self.costs.get(self._here)
        if cost is None:
            load = self._load()
            program = localize(load.partition, self.cache, sparse=True)
            cost = self.costs[self._here] = self.model.evaluate(program, load)
        return cost

    def _load(self) -> DeviceLoad:
        number, load = self._loaded
        if number != self._here or load is None:
            load = self.model.load(self.state.partition(self.cache.rows))
            self._loaded = self._here, load
        return load

    def bound(self) -> Score | None:
        return self.goal(self.least_cost()) if self.goal.monotone else None

    def least_cost(self) -> Cost:
        """Lower bound, in every figure, of the cost of the current state."""
        return self.model.lower_bound(self._load())

    def score(self) -> Score:
        return self.goal(self.cost())

    def far_behind(self, score: Score | None, share: float) -> bool:
        """True if a score is behind the one to beat, by more than a share of the objective."""
        if self.beat is None or score is None:
            return False
        return score.scalar() > self.beat.scalar() + math.log1p(share)

    def costed(self, path: Sequence[Move]) -> tuple[Score, Cost]:
        """Score and cost after the moves of a path; the state is restored."""
        taken = list(play(self, path))
        cost = self.cost()
        rewind(self, len(taken))
        return self.goal(cost), cost

    def clear_caches(self) -> None:
        """Clears the caches of localized ops, propagation and legal moves, to free memory."""
        self.cache = LocalCache(self.model.machine.traits)
        self.state.clear_caches()
        self._legal.clear()

    def describe(self, move: Move) -> str:
        """Text of a move, with the path of an argument (if folded, of the first layer)."""
        return move.describe(self._name, self.mesh.label)  # type: ignore[attr-defined, no-any-return]

    def _name(self, cls: int) -> str:
        """Name of a class, by its first argument."""
        module, members = self.graph.module, self.graph.members[cls]
        paths = dict(zip((v.id for v in module.body.args), module.arg_paths, strict=True))
        return next((paths[v] for v in members if v in paths), module.values[members[0]].name)

    def decisions(self, path: Sequence[Move]) -> list[Decision]:
        """Elementary decisions of a path of moves; the state is restored."""
        out = [d for m in path for d in m.apply(self.targets, self.state)]  # type: ignore[attr-defined]
        self.state.restore(self._keys[self._here])
        return out

    def rows_after(self, path: Sequence[Move]) -> tuple[list[array[int]], list[array[int]]]:
        """Tiles of classes and loops of nodes after a path, by axis; the state is restored."""
        taken = len(list(play(self, path)))
        rows = [row[:] for row in self.state.tiles], [row[:] for row in self.state.loops]
        rewind(self, taken)
        return rows
