"""Answers without rings for a search on a mesh with diagonals."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Protocol

from partir_search.ir.mesh import MeshShape
from partir_search.mcts.game import Move, Record
from partir_search.mcts.search import Result, search
from partir_search.planning.exact_answer import EXACT_STARTS, ExactAnswer, exact_moves
from partir_search.planning.fold_limits import Finalist
from partir_search.planning.fold_models import FoldModels
from partir_search.planning.game import PlanningGame
from partir_search.propagation.actions import Action
from partir_search.strategies.catalogue import named_strategies


class MeshPlanner(Protocol):
    """Planner of one program on any mesh (`Planner`)."""

    mesh: MeshShape
    stage_axes: Sequence[str]
    streams: bool

    def on_mesh(self, mesh: MeshShape, *, split: bool = True) -> MeshPlanner:
        """Planner of the program on another mesh, with axes split into sub-axes where useful."""

    def game(
        self, axes: Sequence[str], before: Sequence[Action] = (), exclude: Sequence[str] = ()
    ) -> tuple[FoldModels, PlanningGame]:
        """Game for a search over `axes`, behind the fold."""

    def finalist(
        self,
        game: PlanningGame,
        models: FoldModels,
        before: Sequence[Action],
        result: Result,
        starts: Sequence[Sequence[Move]],
        exact: ExactAnswer,
    ) -> Finalist:
        """The best answer of a search by the whole program."""


def answers_in_space(
    planner: MeshPlanner,
    names: Sequence[str],
    before: Sequence[Action],
    exclude: Sequence[str],
    episodes: int,
    seed: int,
    progress: Callable[[Record], None] | None,
) -> tuple[ExactAnswer, Sequence[tuple[Move, ...]]]:
    """The best answers along the axes of devices, as starts of a search with diagonals.

    Diagonals come last among the axes: the moves are legal on the mesh with diagonals. The search
    keeps all episodes, and has no bound, as rings may be faster.

    Args:
      planner: of the mesh with diagonals.
      names: axes and diagonals of the search.
      before: actions applied before the search.
      exclude: globs of arguments excluded from moves.
      episodes / seed / progress: of the search.

    Returns:
      Assignments by exact steps, and the moves of the answers of a search without rings, the answer
      taken without rings first. Nothing at all if `before` tiles a diagonal, or sub-axes differ
      without diagonals.
    """
    mesh = planner.mesh
    diagonal = set(mesh.diagonal_names)
    plain = planner.on_mesh(mesh.user)
    plain.streams = False
    tiled = diagonal & {action.axis for action in before}
    if tiled or mesh.time_axes or plain.mesh.names != mesh.device_names or not episodes:
        return ExactAnswer(), ()
    left = [name for name in names if name not in diagonal]
    models, game = plain.game(left, before, exclude)
    known = named_strategies(plain.mesh, left, game.targets, stages=planner.stage_axes)
    exact = exact_moves(game, known, episodes=episodes)
    starts = [moves for _, moves in known]
    result = search(
        game,
        episodes=1 if exact.proven else episodes,
        seed=seed,
        starts=[*starts, *((move,) for move in exact.moves[:EXACT_STARTS])],
        settled=exact.settled,
        progress=progress,
    )
    taken = plain.finalist(game, models, before, result, starts, exact).path
    elites = [elite.path for elite in result.elites[:EXACT_STARTS]]
    found = dataclasses.replace(exact, bound=None, later=None, settled=False, proven=False)
    return found, list(dict.fromkeys([taken, *elites]))
