"""Fewer actions of the same effect: equal actions on values of several layers as one."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Hashable, Sequence

from partir_search.propagation.actions import Action, FixLoop, Tile
from partir_search.propagation.apply import apply_compatible
from partir_search.propagation.state import State

NUMBER = re.compile(r"\d+")  # in a name: of a layer, or of one of several equal ops


def grouped(actions: Sequence[Action], reached: State) -> Sequence[Action]:
    """Actions with equal ones on values that differ in numbers of their names joined.

    Joined actions stand at the place of the first or, to reach the state, of the last one.

    Args:
      actions: from the first state of a program, all legal.
      reached: the state after the actions.

    Returns:
      `actions` if the joined ones reach another state.
    """
    keys = [*map(_key, range(len(actions)), actions)]
    first, last = dict.fromkeys(keys), dict.fromkeys(reversed(keys))
    for order in (first, reversed(last)):
        groups: dict[Hashable, list[Action]] = {key: [] for key in order}
        for key, action in zip(keys, actions, strict=True):
            groups[key].append(action)
        state = State(reached.graph, reached.mesh)
        played, dropped = apply_compatible(state, [_joined(group) for group in groups.values()])
        if not dropped and state.key() == reached.key():
            return played
    return actions


def _key(at: int, action: Action) -> Hashable:
    """Key, equal for actions to join.

    Args:
      at: number of the action.
    """
    match action:
        case Tile(value, dim, axis):
            return Tile, NUMBER.sub("", value), dim, axis
        case FixLoop(value, factor, axis):
            return FixLoop, NUMBER.sub("", value), factor, axis
    return at


def _joined(actions: Sequence[Action]) -> Action:
    """One action on all values of several equal actions."""
    first, names = actions[0], list(dict.fromkeys(v for a in actions for v in a.values))
    match first:
        case Tile():
            barriers = dict.fromkeys(b for a in actions if isinstance(a, Tile) for b in a.barriers)
            ends = tuple(name for name in barriers if name not in names)
            return dataclasses.replace(first, also=tuple(names[1:]), barriers=ends)
        case FixLoop():
            return dataclasses.replace(first, also=tuple(names[1:]))
    return first
