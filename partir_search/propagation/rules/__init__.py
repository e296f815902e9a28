"""Rules by family. Importing the package fills `RULES`."""

from partir_search.propagation.rules import (
    contraction,
    control_flow,
    effects,
    elementwise,
    indexing,
    linalg,
    manual,
    other,
    random,
    shape,
    windowed,
)
from partir_search.propagation.rules.registry import RULES, RuleTable, register, whole

__all__ = [
    "RULES",
    "RuleTable",
    "contraction",
    "control_flow",
    "effects",
    "elementwise",
    "indexing",
    "linalg",
    "manual",
    "other",
    "random",
    "register",
    "shape",
    "whole",
    "windowed",
]
