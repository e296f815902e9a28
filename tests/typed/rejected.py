"""Mistakes found by a type checker: each ignored line holds one.

An ignore without an error is an error itself (`warn_unused_ignores` in pyproject.toml).
"""

from __future__ import annotations

import jax

import partir_search as ps
from tests.typed.accepted import State, Trainer, step


def mistakes(state: State, batch: jax.Array) -> None:
    """Wrong types and numbers of arguments, and results used as another type."""
    step(state, 3)  # type: ignore[arg-type]
    step(state)  # type: ignore[call-arg]
    step(state, batch, rate="fast")  # type: ignore[arg-type]
    step(state, batch, speed=1.0)  # type: ignore[call-arg]
    value: float = step(state, batch)  # type: ignore[assignment]
    Trainer().step(state, value)  # type: ignore[arg-type]
    step.plan(state, batch).partition_specs.args  # type: ignore[attr-defined]  # noqa: B018
    ps.auto_partition(machine=5)  # type: ignore[arg-type]
