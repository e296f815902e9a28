"""Errors of illegal actions, and lookup of values by name."""

from __future__ import annotations

from partir_search.ir.argument_paths import as_path, nearest
from partir_search.ir.core import Module, Value


class IllegalAction(ValueError):
    """An action that is illegal in a state; the message names value, axis and remedy.

    Attributes:
      claim: first clause of the message about a decided value: value, tiling and axis; "" for
        further causes.
    """

    claim = ""


def already_decided(path: str, now: int, axis: str, requested: str) -> IllegalAction:
    """Error for an action on a value with a different tiling along the axis.

    Args:
      path: name of the value.
      now: dim tiled along `axis`, or REPLICATED.
      requested: tiling as a participle ("tiled on dim 1").
    """
    decided = f"tiled on dim {now}" if now >= 0 else "replicated"
    claim = f"{path} cannot be {requested} along axis {axis!r}"
    error = IllegalAction(
        f"{claim}: an earlier tactic (or propagation from it) has it {decided};"
        " put this tactic first, or use another axis"
    )
    error.claim = claim
    return error


def find_value(module: Module, name: str) -> Value | None:
    """Value by its name, arguments also by path; None for an unknown name."""
    names = module.value_names()
    return names.get(name) or names.get(name.replace("/", "."))


def value_named(module: Module, name: str) -> Value:
    """Value by its name; arguments also by path.

    Raises:
      IllegalAction: the program has no value of the name.
    """
    found = find_value(module, name)
    if found is None:
        path = as_path(name, module.arg_paths)
        raise IllegalAction(
            f"the program has no value {path!r}; near it are: {nearest(path, module.arg_paths)}"
        )
    return found
