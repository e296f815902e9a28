"""Known strategies of a step, in one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax.sharding import AbstractMesh, Mesh

from partir_search.api import auto_partition
from partir_search.arguments.axes import AnyMesh
from partir_search.calling.partitioned import AutoPartitioned
from partir_search.plan.known_strategies import KnownStrategies
from partir_search.simulator.target.machine import Machine


def known_strategies(
    step: Callable[..., Any] | AutoPartitioned[..., Any],
    mesh: AnyMesh,
    *args: Any,
    machine: Machine | str | None = None,
    **kwargs: Any,
) -> KnownStrategies:
    """Plans every known strategy of a step (data, tensor and sequence parallelism, ZeRO ...).

    Args:
      step: a plain, jitted or partitioned function; one with static arguments is partitioned.
      mesh: the mesh; devices are not needed.
      *args: arguments of the step, arrays or `jax.ShapeDtypeStruct`s.
      machine: hardware figures or their name; default: the machine of the mesh's devices.
      **kwargs: keyword arguments of the step.

    Returns:
      Plans by name, fitting plans first, fastest first; printing shows a table.
    """
    if isinstance(step, Mesh | AbstractMesh):
        raise TypeError(
            "known_strategies takes the step first: known_strategies(step, mesh, *args)"
        )
    known = step if isinstance(step, AutoPartitioned) else None
    positions, names = known.static if known else ((), ())
    partitioned = auto_partition(
        mesh, machine=machine, static_argnums=positions, static_argnames=names
    )(known.plain if known else step)
    return KnownStrategies(partitioned.known_plans(*args, **kwargs))
