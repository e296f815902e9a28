"""Automatic partitioning of JAX train steps over device meshes."""

import warnings
from typing import Any

from partir_search.aot.hlo import hlo_counts, stablehlo_counts
from partir_search.aot.targets import Target
from partir_search.aot.verify import Verification
from partir_search.api import auto_partition
from partir_search.calling.partitioned import AutoPartitioned
from partir_search.frontends.protocol import FrontEnd, SplitArguments
from partir_search.frontends.registry import register_front_end
from partir_search.ir.mesh import MeshShape
from partir_search.known import known_strategies
from partir_search.mcts.goals import Fastest, FewestBytes, Fit, Goal, Weighted
from partir_search.messages.version import VERSION
from partir_search.passes.group_arguments import Group, group
from partir_search.plan.check import Check
from partir_search.plan.collectives import Collective
from partir_search.plan.compare import Comparison, compare
from partir_search.plan.confirmation import Confirmation, Finalist
from partir_search.plan.front import Front, FrontPoint
from partir_search.plan.known_strategies import KnownStrategies
from partir_search.plan.multihost import PlansDiffer
from partir_search.plan.plan import Plan
from partir_search.plan.planned_array import PlannedArray
from partir_search.plan.profiles import TraceComparison, compare_trace
from partir_search.plan.remedy import Remedy
from partir_search.plan.report import tables as report
from partir_search.plan.serialization import load_plan
from partir_search.plan.spec import PlanSpec
from partir_search.planning.confirm.request import Confirm
from partir_search.planning.microbatch import microbatched
from partir_search.planning.parallelism import (
    CollectiveMatmul,
    ContextParallel,
    SpatialTemporal,
    StackParallel,
    Summa,
    TensorParallel3D,
)
from partir_search.planning.pipeline_tactic import Pipeline
from partir_search.planning.remedies import DoesNotFit
from partir_search.planning.tactics import (
    FIRST_DIVISIBLE_DIM,
    REPLICATED,
    AutomaticPartition,
    Dim,
    ManualPartition,
    Tactic,
)
from partir_search.profile.profile import Profile, load_profile
from partir_search.profiling.profiled import ProfiledPlan, profiled_plan
from partir_search.propagation.actions import (
    Action,
    AxisOrder,
    Close,
    Enter,
    FixLoop,
    KeepGathered,
    Leave,
    Replicate,
    RingSchedule,
    Tile,
    WindowedEinsum,
)
from partir_search.propagation.contradictions import IllegalAction
from partir_search.rules.user import register_rule, with_rule
from partir_search.simulator.cost import Cost
from partir_search.simulator.target.machine import MACHINES, Machine
from partir_search.simulator.target.traits import XlaTraits

__version__ = VERSION

__all__ = [
    "FIRST_DIVISIBLE_DIM",
    "MACHINES",
    "REPLICATED",
    "Action",
    "AutoPartitioned",
    "AutomaticPartition",
    "AxisOrder",
    "Check",
    "Close",
    "Collective",
    "CollectiveMatmul",
    "Comparison",
    "Confirm",
    "Confirmation",
    "ContextParallel",
    "Cost",
    "Dim",
    "DoesNotFit",
    "Enter",
    "Fastest",
    "FewestBytes",
    "Finalist",
    "Fit",
    "FixLoop",
    "Front",
    "FrontEnd",
    "FrontPoint",
    "Goal",
    "Group",
    "IllegalAction",
    "KeepGathered",
    "KnownStrategies",
    "Leave",
    "Machine",
    "ManualPartition",
    "MeshShape",
    "Pipeline",
    "Plan",
    "PlanSpec",
    "PlannedArray",
    "PlansDiffer",
    "Profile",
    "ProfiledPlan",
    "Remedy",
    "Replicate",
    "RingSchedule",
    "SpatialTemporal",
    "SplitArguments",
    "StackParallel",
    "Summa",
    "Tactic",
    "Target",
    "TensorParallel3D",
    "Tile",
    "TraceComparison",
    "Verification",
    "Weighted",
    "WindowedEinsum",
    "XlaTraits",
    "auto_partition",
    "compare",
    "compare_trace",
    "group",
    "hlo_counts",
    "known_strategies",
    "load_plan",
    "load_profile",
    "microbatched",
    "profiled_plan",
    "register_front_end",
    "register_rule",
    "report",
    "stablehlo_counts",
    "with_rule",
]

_RENAMED = {
    "Bar": "Close",
    "Experts": "KnownStrategies",
    "FrontEndParts": "SplitArguments",
    "Hold": "KeepGathered",
    "Nest": "AxisOrder",
    "RingForm": "RingSchedule",
    "SavedPlan": "PlanSpec",
    "Stream": "WindowedEinsum",
    "experts": "known_strategies",
}


def __getattr__(name: str) -> Any:
    """Former names, for one version."""
    if name not in _RENAMED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    new = _RENAMED[name]
    warnings.warn(f"partir_search.{name} is now {new}", DeprecationWarning, stacklevel=2)
    return globals()[new]
