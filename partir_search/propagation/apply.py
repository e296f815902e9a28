"""Application of action sequences: fixed shardings, schedules, saved plans, search results."""

from __future__ import annotations

from collections.abc import Sequence

from partir_search.propagation.actions import Action
from partir_search.propagation.contradictions import IllegalAction
from partir_search.propagation.state import State


def apply_all(state: State, actions: Sequence[Action]) -> None:
    """Applies all actions; IllegalAction at the first illegal one."""
    for action in actions:
        action.apply(state)


def apply_compatible(
    state: State, actions: Sequence[Action]
) -> tuple[list[Action], list[tuple[Action, str]]]:
    """Applies the legal actions, to the values that the program has.

    Returns:
      The applied actions, and (action, reason) for each illegal one. Actions without an effect are
      in neither list.
    """
    played, dropped = list[Action](), list[tuple[Action, str]]()
    for action in actions:
        some = action.within(state.graph.module) or action
        try:
            if some.is_applied(state):
                continue
            some.apply(state)
        except ValueError as error:  # IllegalAction, or an axis that the mesh does not have
            dropped.append((action, str(error)))
        else:
            played.append(some)
    return played, dropped


def apply_fixed(state: State, actions: Sequence[Action]) -> list[Action]:
    """Applies shardings fixed by the user; returns the actions with an effect.

    Raises:
      IllegalAction: two shardings contradict each other.
    """
    return _apply_each(
        state,
        actions,
        "another fixed sharding (in_shardings, out_shardings, a constraint, a plan that is"
        " followed) has it otherwise; an argument and the result that replaces it are one value and"
        " need one sharding",
    )


def replay(state: State, actions: Sequence[Action], fixed: Sequence[Action]) -> list[Action]:
    """Applies the actions of a plan, then the user's shardings missing in the plan.

    Returns:
      All actions with an effect.

    Raises:
      IllegalAction: an action is illegal, or the plan contradicts a sharding.
    """
    apply_all(state, actions)
    lacking = [a for a in fixed if a not in actions]
    contradicts = (
        "the plan to replay has it otherwise than in_shardings, out_shardings or a constraint; plan"
        " again with schedule=None, or leave the sharding to the plan"
    )
    return [*actions, *_apply_each(state, lacking, contradicts)]


def _apply_each(state: State, actions: Sequence[Action], contradicts: str) -> list[Action]:
    """Applies the actions without effect so far; an error says `contradicts` of a decided value."""
    # `also` silently skips decided values; once more per value, for the error.
    singles = [one for action in actions for one in action.single()]
    played: list[Action] = []
    try:
        for action in (*actions, *singles):
            if not action.is_applied(state):
                action.apply(state)
                played.append(action)
    except IllegalAction as error:
        if not error.claim:  # orders of axes, or dims that do not divide
            raise
        raise IllegalAction(f"{error.claim}: {contradicts}") from error
    return played
