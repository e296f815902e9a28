"""Automatic partitioning of JAX train steps over device meshes."""

from partir_search import report
from partir_search.agreement import PlansDiffer
from partir_search.api import AutoPartitioned, auto_partition
from partir_search.checking import Check
from partir_search.communication import Collective
from partir_search.comparison import Comparison, Experts, compare
from partir_search.cost.simulator import Cost
from partir_search.frontends.protocol import FrontEnd
from partir_search.frontends.protocol import Parts as FrontEndParts
from partir_search.frontends.registry import register_front_end
from partir_search.groups import Group, group
from partir_search.ir.mesh import MeshShape
from partir_search.known import experts
from partir_search.lowering.compiled import hlo_counts, stablehlo_counts
from partir_search.machine import MACHINES, Machine
from partir_search.mcts.goals import Fastest, FewestBytes, Fit, Goal, Weighted
from partir_search.microbatch import microbatched
from partir_search.parallelism import (
    CollectiveMatmul,
    ContextParallel,
    SpatialTemporal,
    Summa,
    TensorParallel3D,
)
from partir_search.plan import Plan
from partir_search.pressure import DoesNotFit, Remedy
from partir_search.propagation.actions import (
    Action,
    Bar,
    Enter,
    Hold,
    IllegalAction,
    Leave,
    Nest,
    Replicate,
    RingForm,
    Stream,
    Tile,
)
from partir_search.saved import SavedPlan, load_plan
from partir_search.tactics import (
    FIRST_DIVISIBLE_DIM,
    REPLICATED,
    AutomaticPartition,
    Dim,
    ManualPartition,
    Tactic,
)
from partir_search.targets import Target
from partir_search.user_rules import register_rule, with_rule
from partir_search.verification import Verification
from partir_search.version import VERSION

__version__ = VERSION

__all__ = [
    "FIRST_DIVISIBLE_DIM",
    "MACHINES",
    "REPLICATED",
    "Action",
    "AutoPartitioned",
    "AutomaticPartition",
    "Bar",
    "Check",
    "Collective",
    "CollectiveMatmul",
    "Comparison",
    "ContextParallel",
    "Cost",
    "Dim",
    "DoesNotFit",
    "Enter",
    "Experts",
    "Fastest",
    "FewestBytes",
    "Fit",
    "FrontEnd",
    "FrontEndParts",
    "Goal",
    "Group",
    "Hold",
    "IllegalAction",
    "Leave",
    "Machine",
    "ManualPartition",
    "MeshShape",
    "Nest",
    "Plan",
    "PlansDiffer",
    "Remedy",
    "Replicate",
    "RingForm",
    "SavedPlan",
    "SpatialTemporal",
    "Stream",
    "Summa",
    "Tactic",
    "Target",
    "TensorParallel3D",
    "Tile",
    "Verification",
    "Weighted",
    "auto_partition",
    "compare",
    "experts",
    "group",
    "hlo_counts",
    "load_plan",
    "microbatched",
    "register_front_end",
    "register_rule",
    "report",
    "stablehlo_counts",
    "with_rule",
]
