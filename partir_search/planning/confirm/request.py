"""Option `confirm` of `auto_partition`, and its checks."""

from __future__ import annotations

import dataclasses
from typing import Any

from partir_search.aot.judge import CLOCK_HZ
from partir_search.aot.targets import TPUS, Target, target_of
from partir_search.arguments.axes import AnyMesh
from partir_search.ir.mesh import MeshShape
from partir_search.messages import validators
from partir_search.messages.wording import shown
from partir_search.plan.multihost import spans_processes
from partir_search.simulator.target.machine import MACHINES, Machine

MAX_COMPILES = 15
SECONDS = 900.0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Confirm:
    """Choice of the plan by a compiler's figures, after the search.

    The search's plan and further finalists (states of the search, exact steps, known strategies,
    within 10 % of the best by the simulator) are compiled ahead of time, in parallel processes.

    Attributes:
      target: machine and topology, ``tpu_v5e:2x4``; None for the usual topology of the plan's
        machine.
      cycles: True to generate code and judge seconds by the compiler's cycles; False to stop at the
        buffer assignment, after a tenth of the time, and choose the best prediction that fits.
      compiles: most programs compiled.
      seconds: wall seconds that one compilation may take.
      processes: compilations at a time; None for the number of CPUs.
    """

    target: str | None = None
    cycles: bool = True
    compiles: int = MAX_COMPILES
    seconds: float = SECONDS
    processes: int | None = None

    def facts(self) -> tuple[Any, ...]:
        """Settings that the choice of a plan depends on, for the cache key; no time limits."""
        return "confirm", self.target, self.cycles, self.compiles


def confirm_of(given: Any, mesh: AnyMesh, machine: Machine, plan_on: str) -> Confirm | None:
    """The option as a `Confirm`, checked against the mesh, the machine and the compiler.

    Args:
      given: a target's name, True for the machine's own, a `Confirm`, or None or False.
      mesh: mesh of the plan.
      machine: hardware figures of the plan.
      plan_on: option of `auto_partition`.

    Raises:
      TypeError or ValueError: an unknown target, a topology of another size than the mesh, or
        another machine than the plan's.
      RuntimeError: the compiler is missing, or has no such topology.
    """
    if given is None or given is False:
        return None
    shape = MeshShape(tuple(mesh.axis_names), tuple(mesh.axis_sizes))
    if isinstance(given, str):
        given = Confirm(target=given)
    elif given is True:
        given = Confirm()
    if not isinstance(given, Confirm):
        raise TypeError(
            "confirm is a machine and its topology, 'tpu_v5e:2x4', True for the machine's own, or"
            f" partir_search.Confirm(target=...), not {shown(given)}"
        )
    validators.flag("Confirm: cycles", given.cycles)
    validators.whole_number("Confirm: compiles", given.compiles, 1)
    validators.number("Confirm: seconds", given.seconds, above=0)
    if given.processes is not None:
        validators.whole_number("Confirm: processes", given.processes, 1)
    target = _own(machine, shape) if given.target is None else Target.parse(given.target)
    found = dataclasses.replace(given, target=str(target))
    _check(found, target, machine)
    if plan_on == "every" and spans_processes(mesh):
        raise ValueError(
            "confirm: every process would compile the finalists, and time limits may part them;"
            " plan on one: plan_on='first'"
        )
    target.mesh(shape)
    return found


def _own(machine: Machine, shape: MeshShape) -> Target:
    found = target_of(machine.name, shape.devices)
    if found is None:
        raise ValueError(
            f"confirm: no compiler without hardware is known for {shape.devices} devices of"
            f" {machine.name!r}; write a machine and its topology, confirm='tpu_v5e:2x4'"
        )
    return found


def _check(given: Confirm, target: Target, machine: Machine) -> None:
    if machine.name in MACHINES and machine.name != target.machine.name:
        raise ValueError(
            f"confirm compiles for {target}, the plan is for {machine.name!r}; confirm on the"
            f" machine of the plan, or plan with machine={target.machine.name!r}"
        )
    if given.cycles and target.name in TPUS and target.name not in CLOCK_HZ:
        raise ValueError(
            f"confirm: the clock of {target.name} is not known, so its cycles tell no seconds;"
            f" confirm memory alone: partir_search.Confirm(target={str(target)!r}, cycles=False)"
        )
