"""Inputs of a plan: the call, the machine and the traced program."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

from partir_search.ir.core import Module
from partir_search.plan.alternatives import Alternative, Change, TriedPipeline
from partir_search.plan.front import Front
from partir_search.plan.pass_record import PassRecord
from partir_search.plan.plan_bound import PlanBound
from partir_search.plan.remedy import Remedy
from partir_search.simulator.target.machine import Machine


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanContext:
    """Inputs of a plan.

    Attributes:
      mesh: the user's mesh.
      machine: hardware figures used by the simulator.
      in_tree, out_tree: tree structures of (args, kwargs) and of the results.
      original: the traced program, before any rewrite.
      seed: seed of the search.
      memory_limit: bytes per device allowed by the goals.
      remedies: function from a plan over the limit to remedies.
      front: function from a plan to its front.
      passes: records of the passes before the search.
      pipelines: pipelines tried, and the step without one; () if none competed.
      alternatives: function from a plan to known strategies.
      changes: function from a plan to changes by the user.
      near: function from a plan and a number to plans near it.
      bound: function from a plan with recomputation to the bound of the plans without.
    """

    mesh: Any
    machine: Machine
    in_tree: Any
    out_tree: Any
    original: Module
    seed: int = 0
    memory_limit: float = math.inf
    remedies: Callable[[Any], list[Remedy]] = lambda plan: []
    front: Callable[[Any], Front[Any]]
    passes: tuple[PassRecord, ...] = ()
    pipelines: tuple[TriedPipeline, ...] = ()
    alternatives: Callable[[Any], tuple[Alternative, ...]] = lambda plan: ()
    changes: Callable[[Any], tuple[Change, ...]] = lambda plan: ()
    near: Callable[[Any, int], list[Any]] = lambda plan, count: []
    bound: Callable[[Any], PlanBound | None] = lambda plan: None
