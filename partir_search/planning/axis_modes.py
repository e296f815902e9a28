"""Choice of axis modes after a search."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from partir_search.ir.rule import OpRule
from partir_search.ir.skewed_schedule import MIN_TRAFFIC
from partir_search.mcts.game import Score
from partir_search.propagation.actions import (
    Action,
    KeepGathered,
    Mode,
    RingSchedule,
    WindowedEinsum,
)
from partir_search.propagation.state import State


def choose_modes(
    state: State, rules: Sequence[OpRule], score: Callable[[State], Score]
) -> list[Action]:
    """Applies the modes that improve the score, axis by axis; returns the applied actions.

    Candidates are windowed matmuls and attention, kept gathered copies, and ring schedules.

    Args:
      state: the tilings found by the search.
      rules: rule of each op, by id.
      score: score of a state on the unfolded program.
    """
    best, applied = score(state), list[Action]()
    causal = any(r.blockwise and r.blockwise.causal for r in rules)
    for modes in _candidates(state, causal):
        before, chosen = state.modes, None
        for mode in modes:
            state.modes = before
            mode.apply(state)
            reached = score(state)
            if reached < best:
                best, chosen = reached, mode
        state.modes = before
        if chosen:
            chosen.apply(state)
            applied.append(chosen)
    return applied


def _candidates(state: State, causal: bool) -> list[list[Mode]]:
    """Lists of alternative modes; at most one of each list is applied."""
    mesh, found = state.mesh, list[list[Mode]]()
    for name in mesh.user.names:
        zigzag = [WindowedEinsum(name, True)] if causal else []
        found += [[WindowedEinsum(name), *zigzag], [KeepGathered(name)]]
    for name in mesh.diagonal_names:
        if max(state.tiles[mesh.index(name)]) >= 0:
            found.append([RingSchedule(name, MIN_TRAFFIC)])
    return found
