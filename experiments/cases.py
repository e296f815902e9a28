"""Programs that scripts plan and compile: models of the zoo at four layers, and files."""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import inspect
import pathlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from models.catalog import MODELS

_BF16 = jnp.bfloat16
_SMALL = {"layers": 4, "d_model": 1024, "d_ff": 4096, "dtype": _BF16}
_LLAMA = {"layers": 4, "d_model": 1024, "d_ff": 3584, "vocab": 32000}
ZOO: dict[str, tuple[str, int, dict[str, Any]]] = {  # model, batch, sizes
    "transformer": ("transformer-1b", 32, _SMALL | {"heads": 8, "seq": 1024}),
    "mixture": ("gshard-10b", 32, _SMALL | {"heads": 16, "seq": 512, "experts": 16}),
    "dlrm": ("dlrm-criteo", 65536, {"rows": 500_000}),
    "llama": ("llama3-8b", 32, _LLAMA | {"heads": 16, "kv_heads": 8, "seq": 1024}),
    "vit": ("vit-b16", 128, {"layers": 4}),
    "mixer": ("mixer-b16", 128, {"layers": 4}),
    "lstm": ("lstm-2x1500", 64, {}),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Program:
    """A step and its abstract arguments, the first donated.

    Attributes:
      width: of the residual stream, the "embed" dim of a language model; 0 if unknown.
    """

    step: Any
    args: tuple[Any, ...]
    width: int = 0


def program(name: str, files: Sequence[str]) -> Program:
    """The program of a case.

    Args:
      name: of a model of the zoo, or of a file.
      files: cases of files, NAME=PATH:KEYWORDS, as griffin=cases/griffin.py:pattern='RARA'.
    """
    for case in files:
        label, _, rest = case.partition("=")
        if label == name:
            path, _, keywords = rest.partition(":")
            return _from_file(path, keywords)
    model, batch, sizes = ZOO[name]
    entry = MODELS[model].resized(**sizes)
    return Program(entry.step, entry.abstract_args(batch), sizes.get("d_model", 0))


def names_of(files: Sequence[str]) -> list[str]:
    """Names of all cases: the zoo's, then those of files."""
    return [*ZOO, *(each.partition("=")[0] for each in files)]


def _from_file(path: str, keywords: str) -> Program:
    """Program of a file with `make(**sizes)`, which returns step, state and further arguments."""
    spec = importlib.util.spec_from_file_location(pathlib.Path(path).stem, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"--file: {path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    call = ast.parse(f"make({keywords})", mode="eval").body
    assert isinstance(call, ast.Call)
    sizes = {str(k.arg): ast.literal_eval(k.value) for k in call.keywords}
    given = inspect.signature(module.make).parameters
    width = sizes.get("d", given["d"].default if "d" in given else 0)
    step, init, others = module.make(**sizes)
    return Program(step, (jax.eval_shape(init), *others), width)
