"""Candidate decisions for a front, on one form of the program."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from partir_search.mcts.front import nondominated, spread
from partir_search.mcts.game import Move
from partir_search.plan.search_space import SearchSpace, Visited
from partir_search.planning.assignments import Assign
from partir_search.planning.front.memory_steps import memory_moves
from partir_search.planning.front.visited import figures, moves_in_words
from partir_search.planning.memory_fit import renamed_for
from partir_search.planning.planner import Planner
from partir_search.planning.unfold import project_to_fold
from partir_search.propagation.actions import Action
from partir_search.propagation.apply import apply_compatible
from partir_search.propagation.state import State
from partir_search.simulator.cost import Cost
from partir_search.strategies.catalogue import named_strategies

MAX_CANDIDATES = 12  # of one form, costed on the whole program
MAX_PORTABLE = 3  # candidates without exact steps among them
LEAST_GAIN = 1e-7  # of a candidate beside the ends: 0.1 % of the bytes at 0.01 % of the seconds


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Candidate:
    """Decisions with their cost on the whole program.

    Attributes:
      cost: simulated cost per step on one device.
      strategy: origin of the decisions, in words.
      actions: decisions, in replay order.
      portable: True if the actions hold in forms with other segments recomputed too. Exact steps
        decide on recomputed values as well, by name.
    """

    cost: Cost
    strategy: str
    actions: tuple[Action, ...]
    portable: bool


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class _Folded:
    """A path of moves with the cost on the folded program."""

    cost: Cost
    path: tuple[Move, ...]
    strategy: str

    @property
    def exact(self) -> bool:
        """True for a path with an assignment of exact steps."""
        return any(isinstance(move, Assign) for move in self.path)


def find_candidates(
    planner: Planner, space: SearchSpace, visited: Visited, hints: Sequence[Action]
) -> list[Candidate]:
    """Decisions in the space of a search, from fast to small, costed on the whole program.

    Figures of the folded program only select: known strategies, states that the search visited, and
    exact steps under prices of bytes.

    Args:
      planner: of the form of the program.
      space: axes, earlier decisions and excluded arguments.
      visited: states of the search; left out if the search was on another form.
      hints: decisions of a plan of another form, as a further start.
    """
    state = State(planner.graph, planner.mesh, memo=planner.memo)
    before, _ = apply_compatible(state, renamed_for(planner.module, space.decided))
    models, game = planner.game(space.axes, before, space.exclude)
    known = named_strategies(
        planner.mesh, space.axes, game.targets, planner.streams, planner.stage_axes
    )
    hint = project_to_fold(renamed_for(planner.module, hints), models.folded, planner.module, game)
    starts = [
        (name, tuple(moves))
        for name, moves in (("nothing tiled", ()), *known, ("decisions of the plan", hint))
    ]
    found = [_Folded(game.costed(path)[1], path, name) for name, path in starts]
    if visited.ops == len(planner.module.ops):
        for cost, path in visited.states:
            found.append(_Folded(cost, path, moves_in_words([game.describe(m) for m in path])))
    fast = nondominated(found, _figures)
    for move, words in memory_moves(game, [(f.strategy, f.path) for f in (fast[0], fast[-1])]):
        found.append(_Folded(game.costed((move,))[1], (move,), words))
    simple = [f for f in found if not f.exact]
    some = spread(nondominated(found, _figures), _figures, MAX_CANDIDATES, LEAST_GAIN)
    some += spread(nondominated(simple, _figures), _figures, MAX_PORTABLE, LEAST_GAIN)
    candidates = []
    for each in dict.fromkeys(some):
        actions, modes, cost = planner.lifted(models, game, each.path, state)
        decided = (*before, *actions, *modes)
        candidates.append(Candidate(cost, each.strategy, decided, not each.exact))
    return candidates


def _figures(found: _Folded) -> tuple[float, float]:
    return figures((found.cost, found))
