"""Unused names for the values that a pass adds."""

from __future__ import annotations

from partir_search.ir.core import Module


class FreshNames:
    """Names of a module's values; a call returns an unused name from a stem."""

    def __init__(self, module: Module) -> None:
        self._taken = {v.name for v in module.values}

    def __call__(self, stem: str) -> str:
        name, n = stem, 1
        while name in self._taken:
            name, n = f"{stem}_{n}", n + 1
        self._taken.add(name)
        return name
