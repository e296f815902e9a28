"""Variation of a plan by a few actions of the user, among the plan's own."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from partir_search.lowering.localize import localize
from partir_search.plan.evaluation import Evaluated
from partir_search.plan.planned import Planned
from partir_search.propagation.actions import Action, Enter, tilings
from partir_search.propagation.apply import apply_compatible
from partir_search.propagation.contradictions import IllegalAction
from partir_search.propagation.state import State

Dropped = tuple[Action, ...]


def varied(planned: Planned, given: Sequence[Action]) -> tuple[Planned, Dropped]:
    """Plays the actions `given` among the plan's compatible actions, and costs the result.

    Two places are tried: before all actions of the plan, and after as many as do not contradict
    `given`. Decisions made first propagate furthest: a parameter's sharding, decided before the
    batch's, reaches activations that the plan tiles otherwise. The plan of fewer seconds is taken.

    Returns:
      The varied plan and the dropped actions, which contradict `given`.

    Raises:
      IllegalAction: an action of `given` cannot be applied.
    """
    names = {name for action in tilings(given) for name in action.values}
    args = planned.graph.module.body.args
    kept = [
        a for a in planned.actions if not (isinstance(a, Enter) and args[a.argument].name in names)
    ]
    found = _varied_at(planned, kept, given, 0)
    if latest := _latest(planned, kept, given):
        other = _varied_at(planned, kept, given, latest)
        found = min(found, other, key=lambda each: each[0].cost.seconds)
    return found


def _latest(planned: Planned, kept: Sequence[Action], given: Sequence[Action]) -> int:
    """Most actions of the plan after which `given` can be applied, by bisection.

    What contradicts after some actions contradicts after more: no action is taken back.
    """
    legal, illegal = 0, len(kept) + 1
    while illegal - legal > 1:
        count = (legal + illegal) // 2
        try:
            _state_at(planned, kept[:count], given)
        except IllegalAction:
            illegal = count
        else:
            legal = count
    return legal


def _state_at(
    planned: Planned, before: Sequence[Action], given: Sequence[Action]
) -> tuple[State, list[Action], list[tuple[Action, str]]]:
    """State after compatible actions and then `given`; the played actions, and the others."""
    state = State(planned.graph, planned.mesh)
    played, dropped = apply_compatible(state, before)
    for action in given:
        if not action.is_applied(state):
            action.apply(state)
            played.append(action)
    return state, played, dropped


def _varied_at(
    planned: Planned, kept: Sequence[Action], given: Sequence[Action], count: int
) -> tuple[Planned, Dropped]:
    """The plan with `given` after `count` of its actions, and the dropped actions."""
    state, played, dropped = _state_at(planned, kept[:count], given)
    played_after, dropped_after = apply_compatible(state, kept[count:])
    program = localize(state.partition(planned.cache.rows), planned.cache, sparse=True)
    model = planned.model
    changed = dataclasses.replace(
        planned,
        actions=(*played, *played_after),
        evaluation=Evaluated(planned.graph, program, model, model.evaluate(program)),
        reports=(),
        seconds={},
        searched=(),
        saved_bound=None,
        saved_space=None,
        saved_confirmation=None,
    )
    return changed, tuple(action for action, _ in (*dropped, *dropped_after))
