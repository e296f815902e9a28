"""Groups of arguments with one tiling."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from partir_search.ir.argument_paths import named
from partir_search.ir.core import Module


@dataclasses.dataclass(frozen=True)
class Group:
    """Arguments that share one tiling; made by `group`.

    Attributes:
      paths: globs on argument paths.
    """

    paths: tuple[str, ...]


def group(*paths: str) -> Group:
    """Declares arguments that share one tiling: for ``auto_partition(groups=[...])``.

    Args:
      paths: globs on argument paths. All arguments matched must have one shape.

    Raises:
      TypeError: no path is given, or one is no string.
    """
    if not paths or not all(isinstance(p, str) for p in paths):
        raise TypeError(
            f"group takes argument paths, group('state/**/q', 'state/**/k'), not {paths}"
        )
    return Group(paths)


def with_groups(module: Module, groups: Sequence[Group]) -> Module:
    """Returns the module with the arguments of each group in `Module.alike`.

    Raises:
      ValueError: a path matches no argument, or members of a group differ in shape.
    """
    pairs: list[tuple[int, int]] = []
    at = {v.id: i for i, v in enumerate(module.body.args)}
    for one in groups:
        members = dict(m for glob in one.paths for m in named(module, glob))
        (first, value), *others = members.items()
        for path, other in others:
            if other.type.shape != value.type.shape:
                raise ValueError(
                    f"group: {first} has shape {value.type.shape} and {path} {other.type.shape};"
                    " arguments that are tiled alike have one shape"
                )
            pairs.append((at[value.id], at[other.id]))
    return dataclasses.replace(module, alike=tuple(pairs)) if pairs else module
