"""Rules by family. Importing the package fills `RULES`."""

from partir_search.rules import (
    attention,
    boundaries,
    contraction,
    control_flow,
    dynamic,
    effects,
    elementwise,
    indexing,
    linalg,
    manual,
    other,
    pooling,
    random,
    shape,
    shifts,
    windowed,
)
from partir_search.rules.registry import RULES, RuleTable, register, whole

__all__ = [
    "RULES",
    "RuleTable",
    "attention",
    "boundaries",
    "contraction",
    "control_flow",
    "dynamic",
    "effects",
    "elementwise",
    "indexing",
    "linalg",
    "manual",
    "other",
    "pooling",
    "random",
    "register",
    "shape",
    "shifts",
    "whole",
    "windowed",
]
