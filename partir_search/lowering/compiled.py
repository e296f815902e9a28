"""Counts collectives in lowered and compiled programs, to hold against a plan."""

from __future__ import annotations

import collections
import re

from partir_search.lowering.reshard import COLLECTIVES

_STABLEHLO = re.compile(
    r'"?stablehlo\.(all_gather|all_reduce|reduce_scatter|all_to_all|collective_permute)"?\('
)
_HLO = re.compile(
    r"=\s+(?P<type>\(.*?\)|\S+)\s+"
    r"(?P<kind>all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute)(?:-start)?\("
    r"(?P<operands>[^)]*)\)"
)


def stablehlo_counts(text: str) -> dict[str, int]:
    """Collectives by kind in StableHLO text (`lowered.as_text()`): exactly what was emitted."""
    found = collections.Counter(m.group(1) for m in _STABLEHLO.finditer(text))
    return {kind: found[kind] for kind in COLLECTIVES}


def hlo_counts(text: str) -> dict[str, int]:
    """Collective operands by kind in optimized HLO text (`compiled.as_text()`).

    Operands, not ops: XLA combines several collectives into one with many operands. An all-to-all
    of XLA:CPU has one operand per participant and counts once.
    """
    found: collections.Counter[str] = collections.Counter()
    for m in _HLO.finditer(text):
        kind = m.group("kind").replace("-", "_")
        operands = [o for o in m.group("operands").split(",") if "%" in o or o.strip()]
        found[kind] += 1 if kind == "all_to_all" else len(operands)
    return {kind: found[kind] for kind in COLLECTIVES}
