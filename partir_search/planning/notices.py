"""Warnings about a program before planning."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from partir_search.ir.analysis.def_use import def_use
from partir_search.ir.core import Module
from partir_search.propagation.actions import Action
from partir_search.rules.registry import RuleTable


def warn_opaque(module: Module) -> None:
    """Warns once for each primitive without a rule."""
    seen: set[str] = set()
    opaque = RuleTable().opaque(module.ops)
    for op in opaque:
        if op.prim not in seen:
            seen.add(op.prim)
            n = sum(o.prim == op.prim for o in opaque)
            warnings.warn(
                f"primitive {op.prim!r} has no sharding rule: its {n} uses (first:"
                f" {op.source}) run replicated on every device; partir_search.register_rule gives"
                " it one, and partir_search.with_rule a function that calls it",
                stacklevel=2,
            )


def warn_constants(module: Module) -> None:
    """Warns about each large closed-over array."""
    for i in module.large_constants():
        value = module.values[i]
        user = next(iter(def_use(module).users[i]), None)
        warnings.warn(
            f"the function closes over an array {value.type} of"
            f" {value.type.nbytes / 2**20:,.0f} MiB (used at {user.source if user else '?'}): it is"
            " tiled and passed along with the arguments, but kept as long as the compiled step;"
            " make it an argument of your own to donate, save or change it",
            stacklevel=2,
        )


def warn_changed(changed: str, dropped: Sequence[tuple[Action, str]]) -> None:
    """Warns about a saved plan of a different program, with the actions left out."""
    left = "; left out: " + "; ".join(f"{a} ({why})" for a, why in dropped[:5]) if dropped else ""
    warnings.warn(f"{changed}; what still holds of it is applied{left}", stacklevel=2)
