"""The known strategies of any step, in one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax.sharding import AbstractMesh, Mesh

from partir_search.api import AutoPartitioned, auto_partition
from partir_search.arguments.axes import AnyMesh
from partir_search.plan.experts import Experts
from partir_search.simulator.target.machine import Machine


def experts(
    step: Callable[..., Any] | AutoPartitioned,
    mesh: AnyMesh,
    *args: Any,
    machine: Machine | str | None = None,
    **kwargs: Any,
) -> Experts:
    """The known strategies of a step (data, tensor, sequence parallelism, ZeRO ...) side by side.

    Args:
      step: a plain, jitted or partitioned function.
      mesh: that they are for; it needs no devices.
      *args: of the step; arrays or `jax.ShapeDtypeStruct`s.
      **kwargs: of the step.
      machine: figures to compare with; default: what the mesh's devices are.

    Returns:
      Plans by name, the fastest that fits first; print it for a table.
    """
    if isinstance(step, Mesh | AbstractMesh):
        raise TypeError("experts takes the step first: experts(step, mesh, *args)")
    plain = step.plain if isinstance(step, AutoPartitioned) else step
    partitioned = auto_partition(mesh, machine=machine)(plain)
    return Experts(partitioned.known_plans(*args, **kwargs))
