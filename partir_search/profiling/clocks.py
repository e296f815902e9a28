"""Seconds of small programs on all devices of a mesh at once."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

ClockName = Literal["cpu", "wall"]

ROW = 8  # runs one after the other in one program: the start of a program is not measured


def clock_of(mesh: Mesh) -> ClockName:
    """Clock for a mesh: CPU seconds of the process for virtual CPU devices on
    shared cores, wall seconds for accelerators.
    """
    return "cpu" if mesh.devices.flat[0].platform == "cpu" else "wall"


def seconds_of(
    body: Callable[..., Any],
    shapes: Sequence[tuple[int, ...]],
    mesh: Mesh,
    dtype: Any,
    *,
    repeats: int,
    clock: ClockName,
) -> float:
    """Median seconds of a function of local arrays, per device.

    The least seconds of a program with the same arguments and nothing to compute are subtracted, as
    long as a tenth of the seconds is left. By the CPU's clock: CPU seconds of all devices over
    their number.

    Args:
      body: function inside of `jax.shard_map`.
      shapes: of the arrays on each device.
      repeats: runs of `ROW` calls each.
    """
    spec = PartitionSpec(mesh.axis_names)

    def row(*xs: Any) -> list[Any]:
        out, last = list[Any](), None
        for each in xs:
            if last is not None:
                each, last = lax.optimization_barrier((each, last))
            last = body(*each)
            out.append(last)
        return out

    def nothing(*xs: Any) -> Any:
        return jnp.zeros(1)

    run, null = (
        jax.jit(
            jax.shard_map(each, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False),
            keep_unused=True,
        )
        for each in (row, nothing)
    )
    sharding = NamedSharding(mesh, spec)

    def filled(shape: tuple[int, ...], value: int) -> Any:
        whole = (shape[0] * mesh.size, *shape[1:])
        return jax.device_put(jnp.full(whole, value, dtype), sharding)

    xs = [tuple(filled(shape, i + 1) for shape in shapes) for i in range(ROW)]
    now = time.process_time if clock == "cpu" else time.perf_counter

    def times(program: Callable[..., Any]) -> list[float]:
        jax.block_until_ready(program(*xs))
        found = []
        for _ in range(repeats):
            begin = now()
            jax.block_until_ready(program(*xs))
            found.append(now() - begin)
        return found

    spent = statistics.median(times(run))
    spent = max(spent - min(times(null)), 0.1 * spent)
    return spent / ROW / (mesh.size if clock == "cpu" else 1)
