"""What a user asks of `auto_partition`, as one value."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Union

from partir_search.arguments.axes import AnyMesh, auto_axes, is_context
from partir_search.cost.simulator import Cost
from partir_search.groups import Group
from partir_search.ir.mesh import MeshShape
from partir_search.machine import Machine
from partir_search.mcts.goals import Goal
from partir_search.plan import Plan
from partir_search.plan_cache import PlanCache
from partir_search.planner import Progress
from partir_search.saved import SavedPlan
from partir_search.tactics import Tactic, diagonals

Schedule = Union[Sequence[Tactic], Plan, SavedPlan, None]
Remat = Union[bool, Literal["auto"]]


@dataclasses.dataclass(frozen=True)
class Options:
    """What `auto_partition` was asked for."""

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
    microbatches: tuple[int, ...]
    on_overflow: Literal["raise", "warn"]
    progress: bool | Progress | None
    rings: bool = False
    skewed_state: bool = False
    follow: Plan | None = None
    cache: PlanCache | None = None
    plan_on: Literal["every", "first"] = "every"
    groups: tuple[Group, ...] = ()
    explicit_results: bool | None = None
    trip_counts: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, known in (
            ("pad", (True, False)),
            ("remat", ("auto", True, False)),
            ("rings", (True, False)),
            ("skewed_state", (True, False)),
            ("plan_on", ("every", "first")),
            ("explicit_results", (None, True, False)),
            ("on_overflow", ("raise", "warn")),
        ):
            given = getattr(self, name)
            if given not in known:
                raise ValueError(f"{name} is one of {known}, not {given!r}")
        if isinstance(self.schedule, str | os.PathLike):
            path = os.fspath(self.schedule)
            raise TypeError(f"schedule is a path: pass partir_search.load_plan({path!r})")
        if not isinstance(self.schedule, Sequence | Plan | SavedPlan | None):
            raise TypeError(f"schedule is a list of tactics or a plan, not {self.schedule!r}")
        for one in self.groups:
            if not isinstance(one, Group):
                raise TypeError(f"groups are made by partir_search.group(...), not {one!r}")
        for glob, count in self.trip_counts.items():
            whole = isinstance(count, int) and not isinstance(count, bool)
            if not isinstance(glob, str) or not whole or count < 1:
                raise ValueError(
                    "trip_counts maps globs on loops to whole numbers of at least 1,"
                    f" {{'*solver.py:41*': 12}}, not {glob!r} to {count!r}"
                )
        if self.episodes < 1:
            raise ValueError(f"episodes must be at least 1, not {self.episodes}")
        if not self.microbatches or min(self.microbatches) < 1:
            given = self.microbatches
            raise ValueError(f"microbatches are numbers of at least 1, not {given!r}")

    @property
    def shape(self) -> MeshShape:
        """The mesh, with the diagonals that the schedule names or a search may use."""
        plain = MeshShape(tuple(self.mesh.axis_names), tuple(self.mesh.axis_sizes))
        given = self.follow or self.schedule
        if isinstance(given, Plan | SavedPlan):
            return _like(plain, given.mesh_shape if isinstance(given, Plan) else given.mesh)
        named = diagonals(given or ()) or (plain.equal_pairs() if self.rings else ())
        return plain.with_diagonals(named, self.skewed_state)

    @property
    def here(self) -> AnyMesh:
        """The mesh on which arguments and results of a call live that is made here: the user's, or
        the same with Auto axes. Within `jax.set_mesh` of the user's mesh it is that one, as jax
        refuses arrays of any other.
        """
        explicit = self.explicit_results
        if explicit is None:
            explicit = is_context(self.mesh)
        return self.mesh if explicit else auto_axes(self.mesh)

    def facts(self) -> list[Any]:
        """What plans depend on besides the program and the mesh."""
        follow = self.follow.to_json() if self.follow else None
        return [
            *(self.schedule, self.machine, self.goals, self.episodes, self.seed),
            *(self.in_shardings, self.out_shardings, self.pad, self.remat, self.microbatches),
            *(self.rings, self.skewed_state, follow, self.groups),
            *sorted(self.trip_counts.items()),
        ]


def _like(mesh: MeshShape, known: MeshShape) -> MeshShape:
    """A mesh with the diagonals of another one and, if its axes are the same, with its parts."""
    parts = known.parts() if known.user == mesh else {}
    return mesh.split(parts).with_diagonals(known.diagonal_names, known.skewed_state)
