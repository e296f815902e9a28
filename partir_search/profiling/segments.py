"""Measured segments of plans as entries of a profile."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from partir_search.aot.targets import Target
from partir_search.plan.plan import Plan
from partir_search.profile.entries import MeasuredSegment
from partir_search.profile.profile import Profile
from partir_search.profiling.clocks import ClockName, clock_of
from partir_search.segments.measure.ahead_of_time import ahead_of_time
from partir_search.segments.measure.measured import Done, Measured
from partir_search.segments.measure.on_devices import on_devices
from partir_search.segments.measure.one_device import on_one_device
from partir_search.segments.segment import Segment, Segments
from partir_search.simulator.parts import PartsOf

ONE_DEVICE = "one device"  # method of `one_device_of`

Measure = Callable[[Sequence[Segment], Done], Mapping[str, Measured]]


@dataclasses.dataclass(frozen=True, slots=True)
class Method:
    """Method of measuring segments.

    Attributes:
      name: as `MeasuredSegment.by`.
      mesh: mesh of the scheduled segments.
      measure: function from segments, and a callback after each, to figures by key.
    """

    name: str
    mesh: Any
    measure: Measure


def devices_of(mesh: Any, runs: int = 10) -> Method:
    """Runs on the devices of a mesh, timed by `clock_of`.

    Args:
      runs: timed runs of a segment.
    """
    clock = clock_of(mesh)

    def measure(segments: Sequence[Segment], done: Done) -> Mapping[str, Measured]:
        return on_devices(segments, mesh, runs=runs, clock=clock, done=done)

    return Method("devices", mesh, measure)


def one_device_of(mesh: Any, runs: int = 10) -> Method:
    """Runs on the first device of the process, with stand-ins for collectives, whose exposed
    seconds are the simulator's.

    Args:
      mesh: the plan's mesh, of devices or abstract.
      runs: timed runs of a segment.
    """
    device = jax.devices()[0]
    clock: ClockName = "cpu" if device.platform == "cpu" else "wall"

    def measure(segments: Sequence[Segment], done: Done) -> Mapping[str, Measured]:
        return on_one_device(segments, device, runs=runs, clock=clock, done=done)

    return Method(ONE_DEVICE, mesh, measure)


def compiler_of(target: str, shape: Any) -> Method:
    """Compilations ahead of time for a target, ``tpu_v5e:2x4``, judged by the compiler's cycles.

    Args:
      shape: the plan's `MeshShape`.
    """
    found = Target.parse(target)

    def measure(segments: Sequence[Segment], done: Done) -> Mapping[str, Measured]:
        return ahead_of_time(segments, found, done=done)

    return Method(str(found), found.mesh(shape), measure)


def entry_key(segment: Segment, method: Method) -> str:
    """Key of a segment in a profile."""
    return f"{method.name} {segment.key}"


def is_measured(segments: Segments, method: Method, profile: Profile) -> bool:
    """True if a profile has every segment."""
    return all(entry_key(each, method) in profile.segments for each in segments.unique)


def measured_into(
    profile: Profile,
    plans: Sequence[tuple[Plan, Segments]],
    method: Method,
    done: Done = lambda text: None,
) -> Profile:
    """A profile with all segments of some plans, unknown ones measured.

    Parts are simulated with the figures of the plans' machine, whose profile is of the same basis;
    parts of another basis are simulated again.

    Args:
      plans: made with `profile`, each with its segments on the method's mesh.
      done: called after each measured segment.
    """
    lacking = {
        each.key: each
        for _, segments in plans
        for each in segments.unique
        if entry_key(each, method) not in profile.segments
    }
    fresh = method.measure(list(lacking.values()), done) if lacking else {}
    found: dict[str, MeasuredSegment] = {}
    for plan, segments in plans:
        parts_of = PartsOf(plan.planned.model, plan.program, plan.simulation)
        for each in segments.unique:
            key = entry_key(each, method)
            old = profile.segments.get(key)
            if key not in found and (old is None or old.basis != profile.basis):
                old = old or _entry(fresh[each.key], method, each.name)
                found[key] = _with_parts(old, each, parts_of, profile.basis)
    return profile.merged(dataclasses.replace(profile, segments=found))


def composed(segments: Segments, method: Method, profile: Profile) -> float:
    """Seconds of a step from measured seconds of segments."""
    entries = {each.key: profile.segments[entry_key(each, method)] for each in segments.unique}
    return segments.composed({key: s.total or s.seconds for key, s in entries.items()})


def _entry(found: Measured, method: Method, label: str) -> MeasuredSegment:
    """Entry of a measurement, without parts."""
    apart = not math.isnan(found.compute)  # kernels alone, without collectives
    return MeasuredSegment(
        seconds=found.compute if apart else found.seconds,
        by=method.name,
        kernels=(),
        label=label,
        spread=found.spread,
        runs=found.runs,
        total=found.seconds if apart else 0.0,
        temp_bytes=found.temp_bytes,
    )


def _with_parts(
    entry: MeasuredSegment, segment: Segment, parts_of: PartsOf, basis: str
) -> MeasuredSegment:
    """An entry with the simulated parts of its segment.

    Collectives take the same share of their durations that is exposed in the whole segment; none
    where the measurement left collectives out.
    """
    parts = parts_of.of(segment.body, segment.trips)
    exposed = segment.simulated.seconds - segment.simulated.compute
    share = 0.0 if entry.total else min(1.0, exposed / max(parts.durations, 1e-30))
    links = [dataclasses.replace(c, seconds=share * c.seconds) for c in parts.collectives]
    return dataclasses.replace(
        entry,
        kernels=parts.kernels,
        collectives=tuple(c for c in links if c.seconds),
        rest=parts.copies + share * parts.further,
        basis=basis,
    )
