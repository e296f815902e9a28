"""Plans measured segment by segment, until the plan chosen has been measured itself."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from typing import TYPE_CHECKING, Any

from jax.sharding import Mesh

from partir_search.calling.partitioned import AutoPartitioned
from partir_search.messages import validators
from partir_search.messages.console import new_table
from partir_search.messages.shown import Shown
from partir_search.messages.wording import milliseconds
from partir_search.plan.plan import Plan
from partir_search.plan.report.progress import step_progress
from partir_search.profile.profile import Profile, load_profile
from partir_search.profiling.segments import (
    ONE_DEVICE,
    Method,
    compiler_of,
    composed,
    devices_of,
    is_measured,
    measured_into,
    one_device_of,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

ROUNDS = 4
NEAR = 2  # further plans measured beside each plan of a search


@dataclasses.dataclass(frozen=True, slots=True)
class Round:
    """One search, and the measurement of the plan found.

    Attributes:
      simulated: seconds of the plan by the profile before the measurement.
      measured: seconds of the plan, from the measured seconds of its segments.
      segments: number of the plan's unique segments.
      new: number of segments measured, of all plans of the round.
      fits: True if the plan is within the memory limit.
    """

    simulated: float
    measured: float
    segments: int
    new: int
    fits: bool


@dataclasses.dataclass(frozen=True, repr=False)
class ProfiledPlan(Shown):
    """A plan with measured segments.

    Attributes:
      plan: the best of all measured plans; run it with ``schedule=``.
      profile: with all measured segments.
      seconds: seconds of the plan, from the measured seconds of its segments.
      settled: True if the last search found a plan whose segments had all been measured.
      rounds: searches, in order.
    """

    plan: Plan
    profile: Profile
    seconds: float
    settled: bool
    rounds: tuple[Round, ...]

    def __rich__(self) -> RenderableType:
        end = "settled" if self.settled else "not settled"
        found = new_table(
            title=f"{self.plan.module.name}: {milliseconds(self.seconds)} measured, {end}",
            title_justify="left",
        )
        for column in ("search", "simulated", "measured", "segments", "newly measured", "fits"):
            found.add_column(column, justify="right")
        for i, each in enumerate(self.rounds):
            times = milliseconds(each.simulated), milliseconds(each.measured)
            counts = str(each.segments), str(each.new)
            found.add_row(str(i + 1), *times, *counts, "yes" if each.fits else "no")
        return found


def profiled_plan(
    step: AutoPartitioned[..., Any],
    *args: Any,
    profile: Profile | str | os.PathLike[str],
    target: str | None = None,
    rounds: int = ROUNDS,
    near: int = NEAR,
    runs: int = 10,
    progress: bool = True,
    **kwargs: Any,
) -> ProfiledPlan:
    """Plans a step, measures the segments of its best plans and plans again, until the plan found
    has been measured itself.

    Known segments are not measured again, whichever program measured them.

    Args:
      step: a function returned by `auto_partition`, which searches.
      *args: arguments of the step, arrays or `jax.ShapeDtypeStruct`s.
      profile: measured figures, or their file, made if missing and added to.
      target: machine and topology whose compiler measures, ``tpu_v5e:2x4``; or ``one device``, to
        run segments of a plan for many devices on one, without its collectives, whose seconds are
        the simulator's. By default segments run on the mesh's devices.
      rounds: most searches.
      near: number of further plans measured beside each search's plan (`Plan.near`).
      runs: timed runs of a segment on devices.
      progress: True for a progress bar.
      **kwargs: keyword arguments of the step.

    Raises:
      ValueError: the profile is of another machine or version, or the mesh has no devices without a
        target.
    """
    if not isinstance(step, AutoPartitioned):
        raise TypeError(f"profiled_plan takes what auto_partition returned, not {step!r}")
    validators.whole_number("rounds", rounds, 1)
    file, known = _opened(profile, step, target)
    method: Method | None = None
    best: tuple[tuple[bool, float], Plan] | None = None
    done: list[Round] = []
    settled = False
    for number in range(rounds):
        plan = step.with_profile(known).plan(*args, **kwargs)
        method = method or _method(plan, target, runs)
        own = plan.segments(method.mesh)
        settled = is_measured(own, method, known)
        plans = [(plan, own)]
        if not settled:
            plans += [(each, each.segments(method.mesh)) for each in plan.near(near)]
        before = len(known.segments)
        every = len({each.key for _, segments in plans for each in segments.unique})
        with step_progress(progress, f"segments, search {number + 1}", every) as ended:
            known = measured_into(known, plans, method, ended)
        known = known.save(file) if file else known
        for each, segments in plans:
            seconds = composed(segments, method, known)
            rank = not each.fits, seconds
            if best is None or rank <= best[0]:  # of equal plans, the one with the newest figures
                best = rank, each
        spent = composed(own, method, known)
        new = len(known.segments) - before
        done.append(Round(plan.cost.seconds, spent, len(own.unique), new, plan.fits))
        if settled:
            break
    assert best is not None
    (_, seconds), plan = best
    if plan.machine.profile != known:  # figures of the last profile, without a search
        plan = step.with_profile(known, plan).plan(*args, **kwargs)
    return ProfiledPlan(plan, known, seconds, settled, tuple(done))


def _opened(
    profile: Profile | str | os.PathLike[str], step: AutoPartitioned[..., Any], target: str | None
) -> tuple[pathlib.Path | None, Profile]:
    """File of a profile, if any, and its content; empty for a missing file."""
    if isinstance(profile, Profile):
        return None, profile
    file = pathlib.Path(profile)
    if file.exists():
        return file, load_profile(file)
    compiler = "libtpu" if target and step.machine.torus else "jaxlib"
    return file, dataclasses.replace(Profile.empty(step.machine.name, compiler), path=str(file))


def _method(plan: Plan, target: str | None, runs: int) -> Method:
    """Method of measuring: on one device, by a target's compiler, or on the plan's devices."""
    if target == ONE_DEVICE:
        return one_device_of(plan.mesh, runs)
    if target is not None:
        return compiler_of(target, plan.mesh_shape.user)
    if not isinstance(plan.mesh, Mesh):
        raise ValueError(
            "profiled_plan runs segments on the mesh's devices, and an AbstractMesh has none: give"
            " auto_partition a jax.sharding.Mesh, or pass target='one device' or 'tpu_v5e:2x4'"
        )
    return devices_of(plan.mesh, runs)
