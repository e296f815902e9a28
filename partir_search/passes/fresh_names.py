"""Names of values added by a pass: unused ones, or names apart in the end."""

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


def name_apart(module: Module) -> None:
    """Gives values with one name different names; arguments keep theirs."""
    taken: dict[str, int] = {}
    for value in module.values:
        seen = taken.get(value.name, 0)
        taken[value.name] = seen + 1
        if seen:
            name = f"{value.name}_{seen}"
            while name in taken:
                seen += 1
                name = f"{value.name}_{seen}"
            taken[name] = 1
            value.name = name
