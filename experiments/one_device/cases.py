"""Cases: models of the catalog with few layers at their own widths, forms of a transformer, and
programs of `experiments.held_out` as they are.
"""

from __future__ import annotations

import dataclasses
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


@dataclasses.dataclass(frozen=True)
class Form:
    """A form of a model that the planner writes, or that the model has.

    Attributes:
      model / batch / sizes: entry of the catalog, examples, and fields of its config.
      options: of `auto_partition`.
      share: limit of memory, as a share of the peak without recomputation; 0 for none.
    """

    model: str
    batch: int
    sizes: Mapping[str, Any]
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    share: float = 0.0


def _forms(name: str, model: str, batch: int, **sizes: Any) -> dict[str, Form]:
    """Forms of a model with recomputation: none, chosen by the planner, and of all layers."""
    found = {"stored": Form(model, batch, sizes, {"remat": False})}
    found["auto"] = Form(model, batch, sizes)
    for share in (0.7, 0.45):
        found[f"{100 * share:.0f}%"] = Form(model, batch, sizes, share=share)
    found["checkpoint"] = Form(model, batch, {**sizes, "remat": True}, {"remat": False})
    return {f"{name}-{form}": each for form, each in found.items()}


_WIDE = {"layers": 6, "dtype": jnp.bfloat16}
_SMALL = {"layers": 2, "d_model": 32, "heads": 2, "d_ff": 64, "vocab": 128, "seq": 32}
FORMS: Mapping[str, Form] = {
    **_forms("scan", "transformer-1b", 8, scan=True, **_WIDE),
    **_forms("unrolled", "transformer-1b", 8, **_WIDE),
    "unrolled-rolled": Form("transformer-1b", 8, _WIDE, {"scan_layers": True}),
    **_forms("tiny-scan", "transformer-tiny", 8, scan=True, **_SMALL),
}
"""Forms of a transformer by name: its layers in a scan or one after the other."""

TINY: Mapping[str, tuple[str, int, dict[str, Any]]] = {
    "tiny": ("transformer-tiny", 8, {}),
    "tiny-lstm": ("lstm-tiny", 8, {}),
}


def program(name: str) -> tuple[Any, Callable[[], Any]]:
    """A case's step, and a function that makes arguments."""
    if name in PROGRAMS:
        step, init, batch = importlib.import_module(f"experiments.held_out.{name}").make()
        return step, lambda: (init(), *map(_filled, batch))
    if name in FORMS:
        model, batch, sizes = FORMS[name].model, FORMS[name].batch, dict(FORMS[name].sizes)
    else:
        model, batch, sizes = {**CASES, **TINY}[name]
    entry = MODELS[model].resized(**sizes)
    return entry.step, lambda: entry.args(batch)


def _filled(struct: jax.ShapeDtypeStruct) -> jax.Array:
    """Small numbers that differ: rows of tables too."""
    numbers = jnp.arange(math.prod(struct.shape)) * 7919 % 1000
    if jnp.issubdtype(struct.dtype, jnp.floating):
        numbers = numbers / 1000
    return numbers.reshape(struct.shape).astype(struct.dtype)
