"""Cases: models of the catalog with few layers at their own widths, and programs of
`experiments.held_out` as they are.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from experiments.held_out import PROGRAMS
from models.catalog import MODELS

CASES: Mapping[str, tuple[str, int, dict[str, Any]]] = {
    "transformer": ("transformer-1b", 8, {"layers": 4}),
    "llama": ("llama3-8b", 2, {"layers": 2, "seq": 4096}),
    "gpt2": ("gpt2-124m", 16, {"layers": 6}),
    "t5": ("t5-large", 32, {"layers": 3}),
    "mixture": ("gshard-10b", 8, {"layers": 2, "experts": 16}),
    "vit": ("vit-b16", 128, {"layers": 6}),
    "resnet": ("resnet50", 128, {}),
    "unet": ("unet", 16, {"blocks": 1}),
    "ssm": ("ssm-370m", 8, {"layers": 3}),
    "lstm": ("lstm-2x1500", 128, {"seq": 32}),
    "bert": ("bert-large", 32, {"layers": 4}),
    "mixer": ("mixer-b16", 128, {"layers": 6}),
    "graph": ("graph-net", 2, {"steps": 2}),
    "dlrm": ("dlrm-criteo", 8192, {"rows": 400_000}),
}
TINY: Mapping[str, tuple[str, int, dict[str, Any]]] = {
    "tiny": ("transformer-tiny", 8, {}),
    "tiny-lstm": ("lstm-tiny", 8, {}),
}


def program(name: str) -> tuple[Any, Callable[[], Any]]:
    """A case's step, and a function that makes arguments."""
    if name in PROGRAMS:
        step, init, batch = importlib.import_module(f"experiments.held_out.{name}").make()
        return step, lambda: (init(), *map(_filled, batch))
    model, batch, sizes = {**CASES, **TINY}[name]
    entry = MODELS[model].resized(**sizes)
    return entry.step, lambda: entry.args(batch)


def _filled(struct: jax.ShapeDtypeStruct) -> jax.Array:
    """Small numbers that differ: rows of tables too."""
    numbers = jnp.arange(math.prod(struct.shape)) * 7919 % 1000
    if jnp.issubdtype(struct.dtype, jnp.floating):
        numbers = numbers / 1000
    return numbers.reshape(struct.shape).astype(struct.dtype)
