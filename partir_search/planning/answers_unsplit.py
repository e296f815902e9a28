"""Answers of exact steps along whole axes, for a mesh with sub-axes.

Labels grow with the power of the axes: with one axis in two parts, a mixture of experts has more
than tables hold. Along whole axes tables are small, and each assignment is one of the split
mesh too, with equal tiles and loops along all parts of an axis.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

from partir_search.ir.mesh import MeshShape
from partir_search.mcts.game import Move, Score, play, rewind
from partir_search.plan.lower_bound import LaterBound, LowerBound, found_in_full
from partir_search.planning.answers_in_space import MeshPlanner
from partir_search.planning.assignments import Assign, decisions_to
from partir_search.planning.exact_answer import EPISODES_PER_START, ExactAnswer, exact_moves
from partir_search.planning.game import PlanningGame
from partir_search.propagation.actions import Action
from partir_search.strategies.catalogue import named_strategies

WITHOUT = ("sub-axes",)  # decisions that plans below the bound lack
NEAR = 0.03  # of the bound, at which an answer settles the search


def answers_unsplit(
    planner: MeshPlanner,
    game: PlanningGame,
    split: ExactAnswer,
    names: Sequence[str],
    before: Sequence[Action],
    exclude: Sequence[str],
    episodes: int,
) -> ExactAnswer:
    """The best assignments along whole axes, as moves of a game on the split mesh.

    The bound is of plans without sub-axes; plans with sub-axes may be faster. An answer near the
    bound settles the search, another keeps all episodes. Exact steps end early where a known
    strategy along sub-axes is far ahead of the first answer. The bound is then found at first
    access, and so is that beside answers along sub-axes, which keep their place: of one start
    along whole axes, which no search reads.

    Args:
      planner: of the mesh with sub-axes.
      game: of the search, in its first state.
      split: answers along sub-axes, without a bound; none with tables too large.
      names: axes of the search.
      before: actions applied before the search.
      exclude: globs of arguments excluded from moves.
      episodes: of the search.

    Returns:
      `split` without sub-axes, if `before` or the search names one, for short searches, without
      exact steps, and if a form competes with another, or seconds are not minimised alone.
    """
    mesh = planner.mesh
    given = [*names, *(action.axis for action in before)]
    if episodes < EPISODES_PER_START or not mesh.sub_axes() or mesh.time_axes:
        return split
    if not _are_whole(given, mesh.user):
        return split
    if split.moves and (game.beat is not None or not split.minimises_seconds):
        return split
    plain = planner.on_mesh(mesh.user, split=False)
    names, before, exclude = tuple(names), tuple(before), tuple(exclude)  # for later

    def answers(beat: Score | None, *, bound_alone: bool) -> tuple[PlanningGame, ExactAnswer]:
        _, whole = plain.game(names, before, exclude)
        known = named_strategies(plain.mesh, names, whole.targets, stages=planner.stage_axes)
        whole.beat = beat
        return whole, exact_moves(whole, known, episodes=episodes, bound_alone=bound_alone)

    alone = LaterBound(lambda: _unsplit(answers(None, bound_alone=True)[1].lower_bound))
    if split.moves:
        return dataclasses.replace(split, later=alone)
    whole, found = answers(_best_known(planner, game, names), bound_alone=False)
    axes = [plain.mesh.names.index(axis) for axis in mesh.whole]
    moves = [_split(game, whole, move, axes) for move in found.moves]
    settled = found.settled and found.nears_bound(NEAR)
    early = found.bound is None and found.steps is not None and found.steps.is_bounded
    later = alone if early else LaterBound(functools.partial(_unsplit, found.lower_bound))
    return ExactAnswer(moves, settled, bound=found.bound, without=WITHOUT, later=later)


def _best_known(planner: MeshPlanner, game: PlanningGame, names: Sequence[str]) -> Score | None:
    """Score of the best known strategy of a game, or of the plan to beat if that is better."""
    known = named_strategies(planner.mesh, names, game.targets, planner.streams, planner.stage_axes)
    scores = [game.costed(moves)[0] for _, moves in known]
    scores += [game.beat] if game.beat is not None else []
    return min(scores, key=Score.rank, default=None)


def _unsplit(bound: LowerBound | LaterBound | None) -> LowerBound | None:
    """A bound along whole axes as a bound of the plans without sub-axes, found in full."""
    found = found_in_full(bound)
    return found and LowerBound(found.seconds, WITHOUT)


def _split(game: PlanningGame, whole: PlanningGame, move: Move, axes: Sequence[int]) -> Assign:
    """A move along whole axes as a move of a game on the split mesh.

    Args:
      whole: game along whole axes.
      axes: [axes of the split mesh] whole axis of each.
    """
    played = len(list(play(whole, [move])))
    tiles, loops = ([rows[a][:] for a in axes] for rows in (whole.state.tiles, whole.state.loops))
    rewind(whole, played)
    return Assign("whole axes", tuple(decisions_to(game.state, tiles, loops)))


def _are_whole(names: Sequence[str], mesh: MeshShape) -> bool:
    """True if all names are of axes of the user's mesh, or of several joined."""
    return all(set(name.split("+")) <= set(mesh.names) for name in names)
