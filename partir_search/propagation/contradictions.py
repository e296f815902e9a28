"""Actions that a state does not admit, and values by name."""

from __future__ import annotations

from partir_search.ir.argument_paths import as_path, nearest
from partir_search.ir.core import Module, Value


class IllegalAction(ValueError):
    """An action that the state does not admit; the message names value, axis and remedy.

    Attributes:
      claim: of a value that is decided otherwise: value, wish and axis, without cause and remedy.
    """

    claim = ""


def already_decided(path: str, now: int, axis: str, wish: str) -> IllegalAction:
    """The error for an action on a value whose tiling along the axis is decided otherwise.

    Args:
      now: the dim tiled along `axis`, or REPLICATED by decision.
      wish: the tiling that was asked for, as a participle ("tiled on dim 1").
    """
    held = f"tiled on dim {now}" if now >= 0 else "kept whole"
    claim = f"{path} cannot be {wish} along axis {axis!r}"
    error = IllegalAction(
        f"{claim}: an earlier tactic (or propagation from it) has it {held}; put this tactic first,"
        " or use another axis"
    )
    error.claim = claim
    return error


def value_named(module: Module, name: str) -> Value:
    """The value that an action names; arguments also by path.

    Raises:
      IllegalAction: the program has no value of the name.
    """
    names = module.value_names()
    found = names.get(name) or names.get(name.replace("/", "."))
    if found is None:
        path = as_path(name, module.arg_paths)
        raise IllegalAction(
            f"the program has no value {path!r}; near it are: {nearest(path, module.arg_paths)}"
        )
    return found
