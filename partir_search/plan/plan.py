"""A plan: the actions chosen, with everything that follows from them."""

from __future__ import annotations

import functools
import json
import os
import pathlib
from typing import TYPE_CHECKING, Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from partir_search.aot.targets import Target
from partir_search.aot.verify import Verification, verify
from partir_search.messages import validators
from partir_search.messages.files import make_folder, write_text
from partir_search.messages.version import VERSION
from partir_search.messages.wording import shown
from partir_search.plan.check import Check
from partir_search.plan.compare import Comparison
from partir_search.plan.explain import explain, with_sharding
from partir_search.plan.export import constrained, logical_axis_rules, paths_of
from partir_search.plan.facts import PlanFacts
from partir_search.plan.pickling import SavedInstead
from partir_search.plan.planned import Planned
from partir_search.plan.report import report_page, tables
from partir_search.plan.search_log import save_search
from partir_search.plan.serialization import FORMAT, arguments_of
from partir_search.plan.spec import PlanSpec

if TYPE_CHECKING:
    from rich.console import Console


class Plan(PlanFacts, SavedInstead):
    """Plan of a function, as `auto_partition(...).plan(...)` returns it.

    Attributes:
      actions: decisions, in order; replayable.
      cost: simulated cost of a step on one device.
      searches: one report per automatic tactic.
      seconds: wall time of planning, by phase.
      rewrites: rewrites of the program before the actions; `remat`, `padding`, `microbatches` and
        `attention` are its fields.
      memory_limit: bytes that the goals allow on a device.
      basis: the plan of other shapes that this one was made from, None if it has its own search.
    """

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
        return Plan(planned, self.rewrites, self._context)

    def report(self, console: Console | None = None) -> None:
        """Prints tables of arguments, strategies, collectives and memory in the terminal."""
        from rich.console import Console

        if console is not None and not isinstance(console, Console):
            raise TypeError(
                f"report prints to a rich.console.Console, not to {shown(console)}; a page is"
                " written by save_report(path)"
            )
        (console or Console()).print(tables.plan_tables(self))

    def save_report(self, path: str | os.PathLike[str]) -> None:
        """Writes the report with pictures as one HTML page, which needs nothing else."""
        make_folder(pathlib.Path(validators.path("path", path)).parent, "path")
        write_text(path, report_page(self, self.timeline))

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
        flat = constrained(self.partition, self._context.mesh)

        def run(*args: Any, **kwargs: Any) -> Any:
            return jax.tree.unflatten(
                self._context.out_tree, flat(*jax.tree.leaves((args, kwargs)))
            )

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

    @functools.cached_property
    def spec(self) -> PlanSpec:
        """The plan's decisions, which can be replayed on the same or another program."""
        return PlanSpec(
            function=self.module.name,
            fingerprint=self.fingerprint,
            mesh=self.mesh_shape,
            machine=self.machine.name,
            actions=self.actions,
            rewrites=self.rewrites,
            arguments=arguments_of(self.module),
        )

    def to_json(self) -> dict[str, Any]:
        """Decisions, figures, and versions, as values of JSON."""
        data = {"format": FORMAT, **self.spec.to_json()}
        for path, _, spec in self.arguments():
            data["arguments"][path]["spec"] = str(spec)
        figures = {"seconds": self.cost.seconds, "peak_bytes": self.cost.peak_bytes}
        versions = {"partir_search": VERSION, "jax": jax.__version__}
        return {**data, **figures, "versions": versions}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the plan as readable JSON; `load_plan` reads it."""
        write_text(path, json.dumps(self.to_json(), indent=1) + "\n")

    def save_search(self, folder: str | os.PathLike[str]) -> None:
        """Writes each automatic tactic's search: `search.json`, and `search.svg` to look at."""
        where = make_folder(folder)
        for i, search in enumerate(self.searches):
            save_search(search, where / (f"search_{i}" if i else ""))

    def __copy__(self) -> Plan:
        other = self._with(self._planned)
        other.basis = self.basis
        return other

    def __repr__(self) -> str:
        return f"Plan({self.module.name}, mesh<{self.mesh_shape}>, {self.cost})"


def spec_of(plan: Plan | PlanSpec) -> PlanSpec:
    """The decisions of a plan; a TypeError for anything else."""
    if isinstance(plan, PlanSpec):
        return plan
    if not isinstance(plan, Plan):
        raise TypeError(f"plan is a Plan or what load_plan reads, not {shown(plan)}")
    return plan.spec
