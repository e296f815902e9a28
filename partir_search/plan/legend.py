"""Legend of the names of known strategies."""

from __future__ import annotations

import re
from collections.abc import Iterable

_CODE = re.compile(r"(?:^|\+)([A-Z0-9]+)(?=$|[(+])|(?<=, )(head)(?=\))")

LEGEND = {
    "BP": "batch parallel: the data's leading dim is tiled",
    "MP": "model (tensor) parallel: matrices of a layer are tiled, partial sums reduced",
    "head": "MP of the vocabulary's matrices as well",
    "SP": "sequence parallel: activations between matrices are tiled as well",
    "Z1": "ZeRO 1: optimizer state tiled",
    "Z1P": "ZeRO 1 with parameters tiled too, casts gathered once a step",
    "Z2": "ZeRO 2: optimizer state and gradients tiled",
    "Z3": "ZeRO 3 (FSDP): parameters tiled too, gathered for use",
    "PP": "pipeline parallel: layers as stages",
    "EP": "expert parallel",
    "ES": "edge sharding of graphs",
    "CP": "context parallel: ring attention",
    "S": "stacks of equal matrices tiled",
    "SUMMA": "products tiled in two dims",
    "3D": "products tiled in three dims",
    "P": "rings on two axes (PrimePar)",
}


def legend(names: Iterable[str]) -> str:
    """Meaning of the codes in names of strategies, "BP(data)+MP(model, head)+Z3"."""
    words = {word for name in names for found in _CODE.findall(name) for word in found}
    return "; ".join(f"{code} {meaning}" for code, meaning in LEGEND.items() if code in words)
