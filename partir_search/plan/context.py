"""Surroundings of a plan: the call, the machine, and the program as it was traced."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

from partir_search.ir.core import Module
from partir_search.plan.pass_record import PassRecord
from partir_search.plan.remedy import Remedy
from partir_search.simulator.target.machine import Machine


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanContext:
    """Surroundings of a plan.

    Attributes:
      mesh: the user's mesh.
      in_tree, out_tree: pytrees of arguments (args, kwargs) and results.
      original: the traced program, before its rewrites.
      memory_limit: bytes that the goals allow on a device.
      remedies: finds remedies for a plan that does not fit.
      passes: records of the passes before the search.
    """

    mesh: Any
    machine: Machine
    in_tree: Any
    out_tree: Any
    original: Module
    seed: int = 0
    memory_limit: float = math.inf
    remedies: Callable[[Any], list[Remedy]] = lambda plan: []
    passes: tuple[PassRecord, ...] = ()
