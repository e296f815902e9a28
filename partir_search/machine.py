"""Deprecated alias of `partir_search.simulator.target.machine`, kept for one version."""

from __future__ import annotations

import warnings
from typing import Any

from partir_search.simulator.target import machine


def __getattr__(name: str) -> Any:
    found = getattr(machine, name)
    warnings.warn(
        f"partir_search.machine.{name} is now partir_search.simulator.target.machine.{name}",
        DeprecationWarning,
        stacklevel=2,
    )
    return found
