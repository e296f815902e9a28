"""A plan: the actions chosen, with everything that follows from them."""

from __future__ import annotations

import collections
import dataclasses
import functools
import json
import math
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from partir_search.aot.targets import Target
from partir_search.aot.verify import Verification, verify
from partir_search.ir.argument_paths import nearest
from partir_search.ir.core import Module, Value
from partir_search.ir.partition import Partition
from partir_search.ir.printer import print_partition
from partir_search.lowering.local_ir import LocalProgram
from partir_search.lowering.reshard import COLLECTIVES
from partir_search.messages import validators
from partir_search.messages.files import make_folder, write_text
from partir_search.messages.wording import shown
from partir_search.passes.pad_choice import Pad
from partir_search.passes.remat import Range
from partir_search.plan.check import Check
from partir_search.plan.collectives import Collective, collectives_of
from partir_search.plan.compare import Comparison
from partir_search.plan.explain import conflicts, explain, why_whole, with_sharding
from partir_search.plan.export import constrained, logical_axis_rules, paths_of
from partir_search.plan.pickling import SavedInstead
from partir_search.plan.planned import Planned, SearchReport
from partir_search.plan.remedy import Remedy
from partir_search.plan.report import report_page, tables
from partir_search.plan.search_log import save_search
from partir_search.plan.serialization import FORMAT, SavedPlan, arguments_of, fingerprint
from partir_search.plan.shardings import Layouts
from partir_search.propagation.actions import Action
from partir_search.simulator.lower_bounds import products_bytes
from partir_search.simulator.simulator import Cost, OpCost
from partir_search.simulator.target.machine import Machine
from partir_search.simulator.timeline import Timeline, timeline
from partir_search.version import VERSION

if TYPE_CHECKING:
    from rich.console import Console

    from partir_search.plan.basis import Basis


class Plan(Layouts, SavedInstead):
    """Plan of a function, as `auto_partition(...).plan(...)` returns it.

    Attributes:
      actions: decisions, in order; replayable.
      cost: simulated cost of a step on one device.
      searches: one report per automatic tactic.
      seconds: wall time of planning, by phase.
      padding: dims that are padded inside of the program, one of each class that goes together.
      remat: stretches of the forward pass (by position) that are computed again.
      microbatches: parts of the batch whose gradients are accumulated one after the other.
      attention: whether each attention is one op, whose scores are made again for gradients.
      memory_limit: bytes that the goals allow on a device.
      basis: the plan of other shapes that this one was made from, None if it has its own search.
    """

    def __init__(
        self,
        planned: Planned,
        *,
        mesh: Any,
        machine: Machine,
        in_tree: Any,
        out_tree: Any,
        seed: int = 0,
        original: Module | None = None,
        remat: Sequence[Range] = (),
        microbatches: int = 1,
        padding: Sequence[Pad] = (),
        attention: bool = False,
        memory_limit: float = math.inf,
        remedies: Callable[[Plan], list[Remedy]] = lambda plan: [],
    ) -> None:
        super().__init__(planned, mesh, in_tree, out_tree)
        self.machine, self.seed = machine, seed
        self.actions: tuple[Action, ...] = planned.actions
        self.cost: Cost = planned.cost
        self.searches: tuple[SearchReport, ...] = planned.reports
        self.seconds: dict[str, float] = planned.seconds
        self.remat, self.memory_limit = tuple(remat), memory_limit
        self.microbatches, self.padding = microbatches, tuple(padding)
        self.attention = attention
        self.basis: Basis | None = None
        self._original, self._remedies = original or planned.graph.module, remedies

    # What follows from the actions --------------------------------------------------------------

    @property
    def program(self) -> LocalProgram:
        """The device-local program that is simulated and emitted."""
        return self._planned.program

    @property
    def sketch(self) -> LocalProgram:
        """The program without the ops at which nothing moves."""
        return self._planned.sketch

    @property
    def partition(self) -> Partition:
        return self._planned.sketch.partition

    @property
    def proven(self) -> bool:
        """True if every automatic choice was enumerated: no plan of its space costs less."""
        return bool(self.searches) and all(s.proven for s in self.searches)

    def ir(self, scope: str | None = None) -> str:
        """The program as tile and sum loops; with `scope`, only ops traced under that name."""
        if scope is None:
            return print_partition(self.partition)
        validators.text("ir: scope", scope, "the name of a jax.named_scope")
        scopes = {op.scope for op in self.module.ops}
        if not any(scope in s for s in scopes):
            near = nearest(scope, scopes - {""}, limit=4) or "none"
            raise ValueError(f"ir: no op was traced under {scope!r}; scopes near it are: {near}")
        return print_partition(self.partition, lambda op: scope in op.scope)

    @property
    def collectives(self) -> tuple[Collective, ...]:
        """Every collective of the program, in program order; then those that the user wrote."""
        return collectives_of(self._planned.sketch)

    @property
    def collective_counts(self) -> dict[str, int]:
        """Collectives in the program text, by kind (one in a loop's body counts once)."""
        found = collections.Counter(c.kind for c in self.collectives)
        return {kind: found[kind] for kind in COLLECTIVES}

    @property
    def sent_bytes(self) -> float:
        """Bytes that one device sends in a step."""
        return sum(self.cost.bytes_by_kind.values())

    @property
    def bound_bytes(self) -> float:
        """Least bytes that one device must send for the program's products if each began with
        every operand on one device only (see `simulator/lower_bounds.py`).
        """
        return products_bytes(self.module, self.partition.rules, self.mesh_shape.devices)

    def breakdown(self) -> tuple[OpCost, ...]:
        """Simulated seconds of each kernel and collective, dearest first."""
        return self._planned.model.breakdown(self._planned.sketch)

    # Questions ---------------------------------------------------------------------------------

    def explain(self, path: str) -> str:
        """Names the action and the op that brought each axis to the arguments at `path`.

        Args:
          path: an argument's path, a glob on paths, or the printed name of any value.
        """
        return explain(self._planned, path)

    def what_if(self, path: str, spec: PartitionSpec | NamedSharding) -> Comparison:
        """Compares the plan with one that has other tilings of some arguments.

        These arguments are tiled first; then the plan's actions are played, unless they contradict.
        Nothing is searched: the other plan is this one with one choice changed.

        Args:
          path: an argument's path, or a glob on paths.
          spec: for each argument; an UNCONSTRAINED dim leaves axes that are not named to the plan.

        Returns:
          This plan beside the other one (`.after`, which may be given as `schedule=`).

        Raises:
          ValueError: no argument goes by that path.
          ValueError: the sharding does not fit an argument, or the mesh.
        """
        planned, dropped = with_sharding(self._planned, path, spec)
        return Comparison(self, self._with(planned), dropped)

    def _with(self, planned: Planned) -> Plan:
        """The same program under other actions."""
        return Plan(
            planned,
            mesh=self._mesh,
            machine=self.machine,
            in_tree=self._in_tree,
            out_tree=self._out_tree,
            seed=self.seed,
            original=self._original,
            remat=self.remat,
            microbatches=self.microbatches,
            padding=self.padding,
            attention=self.attention,
            memory_limit=self.memory_limit,
            remedies=self._remedies,
        )

    def report(self, console: Console | None = None) -> None:
        """Prints tables of arguments, strategies, collectives and memory in the terminal."""
        from rich.console import Console

        if console is not None and not isinstance(console, Console):
            raise TypeError(
                f"report prints to a rich.console.Console, not to {shown(console)}; a page is"
                " written by save_report(path)"
            )
        (console or Console()).print(tables.plan_tables(self))

    @functools.cached_property
    def timeline(self) -> Timeline:
        """The simulated step: compute, collectives per axis, live memory."""
        return timeline(self._planned.model, self.program)

    def save_report(self, path: str | os.PathLike[str]) -> None:
        """Writes the report with pictures as one HTML page, which needs nothing else."""
        make_folder(pathlib.Path(validators.path("path", path)).parent, "path")
        write_text(path, report_page(self, self.timeline))

    def conflicts(self) -> list[str]:
        """Ops at which several factors were asked for, with what asks for them."""
        return conflicts(self._planned)

    def why_whole(self, value: Value) -> str:
        """Why no axis tiles a value."""
        if not isinstance(value, Value):
            raise TypeError(
                f"why_whole takes a value of plan.arguments(), not {shown(value)}; explain(path)"
                " takes an argument's path"
            )
        return why_whole(self._planned, value)

    def opaque(self) -> Mapping[str, tuple[int, str]]:
        """Primitives without a rule: how often they occur and where first."""
        found: dict[str, tuple[int, str]] = {}
        for op in self.module.ops:
            if self.partition.rules[op.id].opaque:
                n, where = found.get(op.prim, (0, op.source))
                found[op.prim] = (n + 1, where)
        return found

    def check(self, step: Any, *args: Any, **kwargs: Any) -> Check:
        """Runs a partitioned function under this plan, and plain, on CPU devices; compares results.

        Args:
          step: what `auto_partition` returned. The mesh is this plan's, of CPU devices.
          *args: arrays, or ShapeDtypeStructs to be filled with random numbers. They may be smaller
            than those that the plan is for: actions that hold for them are applied then.
          **kwargs: those by name.

        Raises:
          TypeError: `step` is a function that nothing partitions.
        """
        if not hasattr(step, "check"):
            raise TypeError(
                f"check takes what auto_partition returned, not {step!r}; wrap it:"
                " plan.check(auto_partition(mesh)(step), ...)"
            )
        found: Check = step.check(*args, plan=self, **kwargs)
        return found

    def constrained(self) -> Any:
        """The function with `with_sharding_constraint`s, for plain `jax.jit`.

        ``jax.jit(plan.constrained(), in_shardings=plan.in_shardings[0])`` runs without this
        package's partitioning; XLA's partitioner chooses the collectives.
        """
        flat = constrained(self.partition, self._mesh)

        def run(*args: Any, **kwargs: Any) -> Any:
            return jax.tree.unflatten(self._out_tree, flat(*jax.tree.leaves((args, kwargs))))

        run.__name__ = run.__qualname__ = self.module.name
        return run

    def logical_axis_rules(self, names: Any, argument: str = "") -> list[tuple[str, Any]]:
        """The plan as rules for `flax.linen.logical_axis_rules`, where logical names allow it.

        Args:
          names: a pytree of tuples of logical names per dim (`nn.get_partition_spec` of the
            variables makes one) for a part of the arguments.
          argument: path of that part, "state/params".

        Raises:
          ValueError: one name stands for dims that the plan tiles differently.
        """
        if not isinstance(argument, str):
            raise TypeError(f"logical_axis_rules: argument is a path, not {shown(argument)}")
        specs = {path: spec for path, _, spec in self.arguments()}
        return logical_axis_rules(specs, paths_of(self.module, argument, names))

    def verify(self, target: str) -> Verification:
        """Compiles the plan with a target's real compiler, ahead of time, and compares.

        Args:
          target: a machine and topology with as many devices as the mesh, ``tpu_v5e:4x4``.
        """
        return verify(self.program, self._planned.model, Target.parse(target))

    # Files -------------------------------------------------------------------------------------

    @property
    def fingerprint(self) -> str:
        return fingerprint(self._original)

    @property
    def original(self) -> Module:
        """The traced program, before dims were padded or parts computed again."""
        return self._original

    @property
    def fits(self) -> bool:
        return self.cost.peak_bytes <= self.memory_limit

    def remedies(self) -> list[Remedy]:
        """Remedies for a plan that does not fit in memory, the cheapest first."""
        return self._remedies(self)

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "function": self.module.name,
            "fingerprint": self.fingerprint,
            "mesh": dict(self.mesh_shape.user.as_dict()),
            **({"parts": parts} if (parts := self.mesh_shape.parts()) else {}),
            **({"diagonals": list(names)} if (names := self.mesh_shape.diagonal_names) else {}),
            **({"skewed_state": True} if self.mesh_shape.skewed_state else {}),
            "machine": self.machine.name,
            "seconds": self.cost.seconds,
            "peak_bytes": self.cost.peak_bytes,
            **({"remat": [list(r) for r in self.remat]} if self.remat else {}),
            **({"microbatches": self.microbatches} if self.microbatches > 1 else {}),
            **({"padding": [dataclasses.asdict(p) for p in self.padding]} if self.padding else {}),
            **({"attention": True} if self.attention else {}),
            "actions": [a.to_json() for a in self.actions],
            "arguments": {
                path: {"type": str(value.type), "spec": str(spec)}
                for path, value, spec in self.arguments()
            },
            "versions": {"partir_search": VERSION, "jax": jax.__version__},
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the plan as readable JSON; `load_plan` reads it."""
        write_text(path, json.dumps(self.to_json(), indent=1) + "\n")

    def save_search(self, folder: str | os.PathLike[str]) -> None:
        """Writes each automatic tactic's search: `search.json`, and `search.svg` to look at."""
        where = make_folder(folder)
        for i, search in enumerate(self.searches):
            save_search(search, where / (f"search_{i}" if i else ""))

    def __copy__(self) -> Plan:
        return self._with(self._planned)

    def __repr__(self) -> str:
        return f"Plan({self.module.name}, mesh<{self.mesh_shape}>, {self.cost})"


def saved_plan(plan: Plan) -> SavedPlan:
    """A plan as saving and loading give it; a loaded one as it is."""
    if isinstance(plan, SavedPlan):
        return plan
    if not isinstance(plan, Plan):
        raise TypeError(f"plan is a Plan or what load_plan reads, not {shown(plan)}")
    return SavedPlan(
        plan.module.name,
        plan.fingerprint,
        plan.mesh_shape,
        plan.machine.name,
        plan.actions,
        plan.remat,
        plan.microbatches,
        plan.padding,
        plan.attention,
        arguments_of(plan.module),
    )
