"""Options of `auto_partition`."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Union

import jax
from jax.sharding import Mesh

from partir_search.arguments.axes import AnyMesh, auto_axes, is_context
from partir_search.ir.mesh import MeshShape
from partir_search.mcts.goals import Goal, memory_limit
from partir_search.passes.group_arguments import Group
from partir_search.passes.pipeline.form import ALL
from partir_search.plan.cache import PlanCache
from partir_search.plan.plan import Plan
from partir_search.plan.rewrites import Rewrites
from partir_search.plan.spec import PlanSpec
from partir_search.planning.confirm.request import Confirm
from partir_search.planning.interruption import SearchJournal
from partir_search.planning.pipeline_tactic import Pipeline
from partir_search.planning.planner import Progress
from partir_search.planning.tactics import AutomaticPartition, Tactic, diagonals
from partir_search.profile.profile import Profile, load_profile
from partir_search.simulator.cost import Cost
from partir_search.simulator.target.device_kinds import platform_of
from partir_search.simulator.target.machine import Machine, find_machine, machine_of_kind

Schedule = Union[Sequence[Tactic], Plan, PlanSpec, None]
Remat = Union[bool, Literal["auto"]]
Stacking = Union[bool, Literal["auto"]]
AGAIN = 0, 1, 2, ALL  # ops of a layer that run again, in the order they are tried


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Options of `auto_partition`, as documented by `auto_partition`.

    Attributes:
      beside_pipelines: the step without a pipeline competes with pipelines, in all forms of these.
      journal: answers of the searches of the current planning; none are recorded by default.
    """

    mesh: AnyMesh
    schedule: Schedule
    machine: Machine
    goals: Sequence[Goal[Cost]] | None
    episodes: int
    seed: int
    in_shardings: Any
    out_shardings: Any
    pad: bool
    remat: Remat
    stack: Stacking
    microbatches: tuple[int, ...]
    on_overflow: Literal["raise", "warn"]
    progress: bool | Progress | None
    scan_layers: Stacking = False
    rings: bool = False
    skewed_state: bool = False
    shardings_like: Plan | None = None
    cache: PlanCache | None = None
    plan_on: Literal["every", "first"] = "every"
    groups: tuple[Group, ...] = ()
    explicit_results: bool | None = None
    trip_counts: Mapping[str, int] = dataclasses.field(default_factory=dict)
    dump_dir: pathlib.Path | None = None
    confirm: Confirm | None = None
    beside_pipelines: bool = False
    journal: SearchJournal | None = None

    @property
    def memory_limit(self) -> float:
        """Bytes per device allowed by the goals; infinite without a `Fit` goal."""
        if self.goals is None:
            return self.machine.hbm_bytes
        return memory_limit(self.goals)

    @property
    def replays(self) -> bool:
        """True if the schedule is a plan."""
        return isinstance(self.schedule, Plan | PlanSpec)

    @property
    def searches_all(self) -> bool:
        """True if one search on all axes is the whole schedule, as without a schedule."""
        if self.schedule is None:
            return True
        if not isinstance(self.schedule, Sequence) or len(self.schedule) != 1:
            return False
        (tactic,) = self.schedule
        return isinstance(tactic, AutomaticPartition) and not (tactic.axes or tactic.exclude)

    @property
    def searches(self) -> bool:
        """True if a search is the schedule or a part."""
        if not isinstance(self.schedule, Sequence):
            return self.schedule is None
        return any(isinstance(tactic, AutomaticPartition) for tactic in self.schedule)

    @property
    def competing(self) -> tuple[Pipeline, ...]:
        """Pipelines of the schedule to choose from; () for none, or for a required one."""
        tactics = self.schedule if isinstance(self.schedule, Sequence) else ()
        return tuple(t for t in tactics if isinstance(t, Pipeline) and t.competes)

    @property
    def leaves_pipelines_out(self) -> bool:
        """True if the plan without a pipeline competes."""
        return all(t.may_be_left_out for t in self.competing)

    def choice_like(self, loop: Rewrites) -> Options:
        """Options with a plan's pipeline, or none, in place of the competing pipelines.

        Args:
          loop: the plan's loop over microbatches.
        """
        if not self.competing:
            return self
        number = loop.microbatches
        given = (
            Pipeline(
                *(f.axis, number, f.chunks, f.schedule, f.split_backward),  # type: ignore[arg-type]
                staged_state=f.staged_state,
            )
            for f in loop.pipeline
        )
        return self.with_pipelines(*given)

    def with_pipelines(self, *pipelines: Pipeline) -> Options:
        """Options with the competing pipelines of the schedule replaced by required ones."""
        tactics = self.schedule if isinstance(self.schedule, Sequence) else ()
        rest = [t for t in tactics if t not in self.competing]
        required = [dataclasses.replace(t, optional=False) for t in pipelines]
        return dataclasses.replace(self, schedule=[*required, *rest], beside_pipelines=not required)

    @property
    def loops(self) -> tuple[Rewrites, ...]:
        """Loops over microbatches to choose from: with the pipeline required by the schedule, its
        layers recomputed in steps as memory requires, or else each number of microbatches.
        """
        tactics = self.schedule if isinstance(self.schedule, Sequence) else ()
        for tactic in tactics:
            if isinstance(tactic, Pipeline) and not tactic.competes:
                mesh = MeshShape(tuple(self.mesh.axis_names), tuple(self.mesh.axis_sizes))
                steps = AGAIN if self.remat else AGAIN[:1]
                return tuple(tactic.loop(mesh, again) for again in steps)
        return tuple(Rewrites(microbatches=n) for n in self.microbatches)

    @property
    def platform(self) -> str:
        """Platform of the mesh's devices or of the machine, by jax's name; "" if unknown."""
        if not isinstance(self.mesh, Mesh):
            return platform_of(self.machine.name)
        device = self.mesh.devices.flat[0]
        named = "cuda" if device.platform == "gpu" else str(device.platform)
        return platform_of(device.device_kind) or named

    @property
    def shape(self) -> MeshShape:
        """The mesh shape, with the diagonals named by the schedule or available to a search."""
        plain = MeshShape(tuple(self.mesh.axis_names), tuple(self.mesh.axis_sizes))
        given = self.shardings_like or self.schedule
        if isinstance(given, Plan | PlanSpec):
            return _like(plain, given.mesh_shape if isinstance(given, Plan) else given.mesh)
        named = diagonals(given or ()) or (plain.equal_pairs() if self.rings else ())
        return plain.with_diagonals(named, self.skewed_state)

    @property
    def here(self) -> AnyMesh:
        """Mesh of a call's arguments and results: the user's mesh or the same mesh with Auto axes.

        Within `jax.set_mesh` of the user's mesh, the user's mesh, as jax rejects arrays on any
        further mesh.
        """
        explicit = self.explicit_results
        if explicit is None:
            explicit = is_context(self.mesh)
        return self.mesh if explicit else auto_axes(self.mesh)

    def facts(self) -> list[Any]:
        """Inputs of planning besides the program and the mesh."""
        like = self.shardings_like.to_json() if self.shardings_like else None
        return [
            *(self.schedule, self.machine, self.goals, self.episodes, self.seed),
            *(self.in_shardings, self.out_shardings, self.pad, self.remat, self.microbatches),
            *(self.stack, self.rings, self.skewed_state, like, self.groups),
            *sorted(self.trip_counts.items()),
            *(self.confirm.facts() if self.confirm else ()),
            *([self.scan_layers] if self.scan_layers else []),
        ]


def machine_of(
    mesh: AnyMesh,
    machine: Machine | str | None,
    profile: Profile | str | os.PathLike[str] | None = None,
) -> Machine:
    """The given machine, or the machine of the mesh's devices (of an AbstractMesh, jax's default).

    Args:
      profile: measured figures of the machine, or their file.

    Raises:
      ValueError: no machine has the name, figures are missing for the kind of device, or the
        profile is of another machine or version.
    """
    if machine is not None:
        found = find_machine(machine)
    else:
        device = mesh.devices.flat[0] if isinstance(mesh, Mesh) else jax.devices()[0]
        found = machine_of_kind(device.device_kind)
    return found if profile is None else found.with_profile(load_profile(profile))


def _like(mesh: MeshShape, known: MeshShape) -> MeshShape:
    """`mesh` with the diagonals of `known` and, if the user axes are equal, with its sub-axes."""
    sub_axes = known.sub_axes() if known.user == mesh else {}
    return mesh.split(sub_axes).with_diagonals(known.diagonal_names, known.skewed_state)
