"""Exact steps on a mesh with diagonals, for plans without rings."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from partir_search.planning.exact_answer import ExactAnswer, exact_moves
from partir_search.propagation.actions import Action
from partir_search.strategies.catalogue import named_strategies

if TYPE_CHECKING:
    from partir_search.planning.planner import Planner

COUNT = 2  # assignments from which the search starts


def exact_in_space(
    planner: Planner,
    names: Sequence[str],
    before: Sequence[Action],
    exclude: Sequence[str],
    episodes: int,
) -> ExactAnswer:
    """The best assignments along the axes of devices, whose costs are pairwise.

    Diagonals come last among the axes, so the moves are legal on the mesh with diagonals. The
    search keeps all its episodes, and has no bound, as rings may be faster.

    Args:
      planner: of the mesh with diagonals.
      names: axes and diagonals of the search.
      before: actions applied before the search.
      exclude: globs of arguments excluded from moves.
      episodes: of the search.

    Returns:
      Nothing where `before` tiles a diagonal, or axes are split into other sub-axes without one.
    """
    mesh = planner.mesh
    diagonal = set(mesh.diagonal_names)
    plain = planner.on_mesh(mesh.user)
    tiled = diagonal & {action.axis for action in before}
    if tiled or mesh.time_axes or plain.mesh.names != mesh.device_names:
        return ExactAnswer()
    left = [name for name in names if name not in diagonal]
    _, game = plain.game(left, before, exclude)
    known = named_strategies(plain.mesh, left, game.targets, stages=planner.stage_axes)
    found = exact_moves(game, known, COUNT, episodes)
    return dataclasses.replace(found, bound=None, settled=False)
