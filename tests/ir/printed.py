"""Plans of small models whose printed form tests read."""

from __future__ import annotations

import functools
from typing import Any

from jax.sharding import AbstractMesh

import partir_search as ps
from models.catalog import MODELS

AXES = AbstractMesh((2, 4), ("batch", "model"))
BATCH = ps.ManualPartition({"batch": 0}, axis="batch")
TOKENS = ps.ManualPartition({"tokens": 0}, axis="batch")
BATCHES = ps.ManualPartition({"batch/**": 0}, axis="batch")
Z2 = ps.ManualPartition({"state/opt_state/**": ps.FIRST_DIVISIBLE_DIM}, axis="batch")


def columns(*paths: str, dim: int = 1) -> ps.ManualPartition:
    return ps.ManualPartition({f"state/params/**/{p}": dim for p in paths}, axis="model")


PROGRAMS: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "transformer-tiny": ({"layers": 2}, [BATCH, columns("mlp_in/kernel"), Z2]),
    "llama-tiny": ({"layers": 3}, [TOKENS, columns("query/kernel", "gate/kernel", "up/kernel")]),
    "gpt-scan-tiny": ({}, [BATCHES]),
    "resnet-tiny": ({}, [BATCHES]),
    "nnx-tiny": ({"layers": 1}, [TOKENS]),
    "moe-tiny": ({}, [BATCH]),
    "dlrm-tiny": ({}, [BATCHES]),
    "graph-net-tiny": ({}, []),
}


@functools.cache
def plan_of(name: str) -> ps.Plan:
    sizes, schedule = PROGRAMS[name]
    entry = MODELS[name].resized(**sizes)
    step = ps.auto_partition(AXES, machine="tpu_v5e", schedule=schedule)(entry.step)
    return step.plan(*entry.abstract_args(16))
