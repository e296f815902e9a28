"""Forms of a program with layers written out and with layers as scans."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Literal

from partir_search.ir.core import Module
from partir_search.passes.roll import Rolled, roll
from partir_search.planning.stage import Stage

SLOWER = 1.1  # simulated seconds with layers as scans over seconds without, at most


def layer_forms(stage: Stage, wanted: bool | Literal["auto"]) -> list[Stage]:
    """Forms of a program to plan.

    Args:
      wanted: True for layers as scans, False for layers written out, "auto" for both.
    """
    if not wanted:
        return [stage]
    found: list[Rolled] = []

    def rewrite(module: Module) -> Module:
        found.append(roll(module))
        return found[0].module

    rewrites = dataclasses.replace(stage.rewrites, scan_layers=True)
    rolled = stage.run("scan_layers", rewrite, rewrites)
    if rolled.module is not stage.module:
        return [rolled] if wanted is True else [stage, rolled]
    if wanted is True and not found[0].pairs:
        reasons = "; ".join(found[0].reasons[:3]) or "no layers repeat"
        warnings.warn(f"scan_layers=True changes nothing: {reasons}", stacklevel=2)
    return [dataclasses.replace(rolled, rewrites=stage.rewrites)]
