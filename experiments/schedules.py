"""Schedules for the transformer by name: `bp+mp+z3`, `mp`, `auto`, `bp+auto` ..."""

from __future__ import annotations

from collections.abc import Sequence

import partir_search as ps
from partir_search import Dim, Tactic

Shape = tuple[int, ...]


def matrices(path: str, shape: Shape) -> Dim:
    """ZeRO on matrices only: scattering a vector saves nothing (see the T32 counts of PartIR)."""
    is_matrix = path.endswith(("kernel", "embedding"))
    return ps.FIRST_DIVISIBLE_DIM if is_matrix else None


def replicated_matrices(path: str, shape: Shape) -> Dim:
    is_matrix = path.endswith(("kernel", "embedding"))
    return ps.REPLICATED if is_matrix else None


def column(path: str, shape: Shape) -> Dim:
    """Megatron: heads of the fused qkv, outputs of the first MLP matrix."""
    if path.endswith("qkv/kernel"):
        return len(shape) - 2
    return len(shape) - 1 if path.endswith("mlp_in/kernel") else None


def schedule(name: str, batch: str = "batch", model: str = "model") -> Sequence[Tactic]:
    """Tactics of a schedule; parts are joined by `+`.

    Parts: bp (batch), mp (Megatron), z2, z3 (ZeRO on the batch axis), auto (search what is left).
    """
    parts: dict[str, Tactic] = {
        "bp": ps.ManualPartition({"tokens": 0}, axis=batch),
        "mp": ps.ManualPartition({"state/params/**": column}, axis=model),
        "z2": ps.ManualPartition(
            {"state/params/**": replicated_matrices, "state/opt_state/**": matrices}, axis=batch
        ),
        "z3": ps.ManualPartition({"state/params/**": matrices}, axis=batch),
        "auto": ps.AutomaticPartition(),
    }
    unknown = [p for p in name.split("+") if p not in parts]
    if unknown:
        raise ValueError(f"unknown schedule part {unknown[0]!r}; parts are {', '.join(parts)}")
    return [parts[p] for p in name.split("+")]
