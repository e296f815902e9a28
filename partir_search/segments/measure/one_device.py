"""Seconds of segments on one device: kernels measured, collectives by the simulator."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import jax
from jax.sharding import AxisType, Mesh

from partir_search.lowering.local_ir import Instruction, LocalRegion, Reshard
from partir_search.lowering.local_value import LocalValue
from partir_search.segments.measure.clock import ClockName
from partir_search.segments.measure.measured import Done, Measured
from partir_search.segments.measure.on_devices import RUNS, Ready, measured
from partir_search.segments.measure.stubs import stub_step
from partir_search.segments.run import Runnable, region_on
from partir_search.segments.segment import Segment


def on_one_device(
    segments: Sequence[Segment],
    device: Any = None,
    *,
    runs: int = RUNS,
    clock: ClockName = "wall",
    done: Done = lambda text: None,
) -> dict[str, Measured]:
    """Measures segments by key, with stand-ins of the same shapes for all collectives.

    The seconds of the stand-ins alone are subtracted. Exposed seconds of collectives are the
    simulator's.

    Args:
      segments: of `plan.segments(mesh)` for devices of the kind, one of each key.
      device: a `jax.Device`; the first by default.
      done: called after each segment.

    Raises:
      NotImplementedError: a segment has collectives of the user's own `shard_map`.
    """
    found = {}
    for each in segments:
        alone = one_device_mesh(each, device or jax.devices()[0])
        rules = each.program.partition.rules
        if any(rules[op].manual for op in _ops(each.body)):
            raise NotImplementedError(f"{each.name} has collectives of a shard_map of its own")
        ready = [Ready(_stubbed(each, each.body, alone))]
        stubs = stubs_alone(each.body)
        if stubs.steps:
            ready.append(Ready(_stubbed(each, stubs, alone)))
        (seconds, spread), *rest = measured(ready, runs, clock)
        compute = max(0.0, seconds - sum(taken for taken, _ in rest))
        exposed = each.simulated.seconds - each.simulated.compute
        temp = ready[0].temp_bytes
        found[each.key] = Measured(compute + exposed, compute, spread, runs, temp)
        done(each.name)
    return found


def one_device_mesh(segment: Segment, device: Any) -> Mesh:
    """Mesh of one device with the axes of the segment's mesh."""
    names = segment.program.partition.mesh.device_names
    types = (AxisType.Auto,) * len(names)
    return jax.make_mesh((1,) * len(names), names, types, devices=[device])


def stubs_alone(body: LocalRegion) -> LocalRegion:
    """The communicating reshards of a stretch, each of a source that enters.

    Reshards inside of loops are left out.
    """
    steps: list[Instruction] = []
    args: list[LocalValue] = []
    results: list[LocalValue] = []
    for item in body.steps:
        if isinstance(item, Reshard) and item.step.communicates:
            source, target = dataclasses.replace(item.source), dataclasses.replace(item.target)
            source.id, target.id = -1 - 2 * len(steps), -2 - 2 * len(steps)
            steps.append(Reshard(item.step, source, target, item.op))
            args.append(source)
            results.append(target)
    return LocalRegion(body.region, args, steps, results)


def _stubbed(segment: Segment, body: LocalRegion, mesh: Mesh) -> Runnable:
    return region_on(segment.program, body, mesh, mesh, stub_step)


def _ops(body: LocalRegion) -> Iterator[int]:
    for item in body.steps:
        if not isinstance(item, Reshard):
            yield item.op.id
            for inner in item.regions:
                yield from _ops(inner)
