"""Flags that the scripts share: what to plan for, and how long to search."""

from __future__ import annotations

import inspect
import sys
from typing import Any

from absl import flags

import partir_search as ps

# Of a plan whose user says nothing.
EPISODES: Any = inspect.signature(ps.auto_partition).parameters["episodes"].default


def define(
    *,
    mesh: str | None = None,
    machine: str | None = None,
    episodes: int | None = None,
    seed: int | None = None,
) -> None:
    """Defines the flags that are given a default, under the same names and words everywhere."""
    script = {"module_name": sys.argv[0]}  # whose --help shows them
    if mesh is not None:
        flags.DEFINE_string("mesh", mesh, "Mesh axes and sizes.", **script)
    if machine is not None:
        told = "Machine to plan for: a name, or a calibration's file."
        flags.DEFINE_string("machine", machine, told, **script)
    if episodes is not None:
        flags.DEFINE_integer("episodes", episodes, "Strategies that a search scores.", **script)
    if seed is not None:
        told = "Seed of the search, of parameters and data."
        flags.DEFINE_integer("seed", seed, told, **script)
