"""A plan: the chosen actions and everything derived from them."""

from __future__ import annotations

import dataclasses
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
from partir_search.messages.files import make_folder, write_bytes, write_text
from partir_search.messages.version import VERSION
from partir_search.messages.wording import shown
from partir_search.plan.check import Check
from partir_search.plan.compare import Comparison
from partir_search.plan.explain import explain, with_sharding
from partir_search.plan.export import constrained, logical_axis_rules, paths_of
from partir_search.plan.facts import PlanFacts
from partir_search.plan.front import Front
from partir_search.plan.pass_record import PassRecord
from partir_search.plan.pickling import SavedInstead
from partir_search.plan.planned import Planned, collector_paused
from partir_search.plan.profiles.schedule_events import schedule_events
from partir_search.plan.profiles.trace_events import encoded, trace_events
from partir_search.plan.profiles.xspace import encoded_xspace
from partir_search.plan.report import report_page, tables
from partir_search.plan.report.notebook import plan_html
from partir_search.plan.rewrites import Rewrites
from partir_search.plan.search_log import save_search
from partir_search.plan.serialization import FORMAT, arguments_of
from partir_search.plan.spec import PlanSpec, record_key

if TYPE_CHECKING:
    from rich.console import Console


class Plan(PlanFacts, SavedInstead):
    """Plan of a function, as returned by `auto_partition(...).plan(...)`.

    Attributes:
      actions: decisions, in replay order.
      cost: simulated cost per step on one device.
      searches: one report per automatic tactic.
      seconds: wall time of planning, by phase.
      rewrites: rewrites applied before the actions; the fields `remat`, `padding`, `microbatches`,
        `parallel_iterations`, `scan_layers` and `attention` are attributes of the plan, too.
      memory_limit: bytes per device allowed by the goals.
      bound: lower bound of the seconds of all plans of the search's space; None without a search
        over all axes at once, for rewritten programs whose search saw another form, and where costs
        are not pairwise (rings).
      confirmed: choice of the plan by a compiler (`auto_partition(confirm=)`), also of the saved
        plan that was replayed; None without.
      basis: the plan of earlier argument shapes from which this plan was derived; None after a full
        search.
    """

    # Questions ---------------------------------------------------------------------------------

    def explain(self, path: str) -> str:
        """Names the action, and the op it propagated through, for each axis of some arguments.

        Args:
          path: an argument's path, a glob on paths, or the printed name of any value.
        """
        return explain(self._planned, path)

    def what_if(self, path: str, spec: PartitionSpec | NamedSharding) -> Comparison:
        """Compares the plan with a variant in which some arguments have a different sharding.

        The sharding is applied before every action of this plan, or as late as they admit,
        whichever takes fewer seconds; actions that contradict are dropped. No search runs.

        Args:
          path: an argument's path, or a glob on paths.
          spec: the sharding; UNCONSTRAINED dims may still be tiled by the plan on unused axes.

        Returns:
          Comparison of this plan with the variant, whose plan is `.after` (usable as `schedule=`).

        Raises:
          ValueError: no argument matches `path`, or the sharding does not fit an argument or the
            mesh.
        """
        planned, dropped = with_sharding(self._planned, path, spec)
        return Comparison(self, self._with(planned), dropped)

    def front(self) -> Front[Plan]:
        """Plans of the program from the fastest to the smallest in memory; each is a point.

        No point is as fast and as small as another. Points beyond the memory limit do not fit, and
        say so. Decisions of the schedule before the search stay; the search's own, and segments
        computed again, vary. The first call takes one to three times as long as the
        search; the front is kept, and shown by `report`, `save_report` and `to_json` from then on.
        """
        if self.known_front is None:
            self.known_front = self._context.front(self)
        return self.known_front

    def near(self, count: int) -> list[Plan]:
        """At most `count` plans within 10 % of a search's plan, best first by the simulator.

        They are known strategies and states of the search, unlike in cost; none without a search.
        """
        return self._context.near(self, validators.whole_number("near: count", count, 0))

    def in_form(self, planned: Planned, rewrites: Rewrites, passes: tuple[PassRecord, ...]) -> Plan:
        """Plan of the same call with different actions, in another form of the program.

        Args:
          planned: the form with applied actions.
          rewrites: rewrites that lead to the form.
          passes: records of the passes from the trace to the form.
        """
        return Plan(planned, rewrites, dataclasses.replace(self._context, passes=passes))

    def _with(self, planned: Planned) -> Plan:
        """Plan of the same program with different actions."""
        return Plan(planned, self.rewrites, self._context)

    def report(self, console: Console | None = None) -> None:
        """Prints tables of arguments, strategies, collectives and memory to the terminal.

        A front found before (`front`) is shown as well.
        """
        from rich.console import Console

        if console is not None and not isinstance(console, Console):
            raise TypeError(
                f"report prints to a rich.console.Console, not to {shown(console)}; a page is"
                " written by save_report(path)"
            )
        with collector_paused():
            found = tables.plan_tables(self)
        (console or Console()).print(found)

    def save_report(self, path: str | os.PathLike[str]) -> None:
        """Writes the report with charts as one self-contained HTML page.

        A front found before (`front`) is shown as well.
        """
        make_folder(pathlib.Path(validators.path("path", path)).parent, "path")
        with collector_paused():
            page = report_page(self, self.timeline)
        write_text(path, page)

    def check(self, step: Any, *args: Any, **kwargs: Any) -> Check:
        """Compares a function partitioned by this plan with the plain function, on CPU devices.

        Args:
          step: the function returned by `auto_partition`. The check uses this plan's mesh, on CPU
            devices.
          *args: arrays, or ShapeDtypeStructs to be filled with random numbers. Shapes may be
            smaller than the plan's; the actions that still hold are applied.
          **kwargs: keyword arguments of the step.

        Raises:
          TypeError: `step` was not returned by `auto_partition`.
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
        """Rules for `flax.linen.logical_axis_rules`, if the logical names can express the plan.

        Args:
          names: pytree of tuples of logical names per dim (for example `nn.get_partition_spec` of
            the variables) for an argument or a subtree.
          argument: path of the argument or subtree, for example "state/params".

        Raises:
          ValueError: dims with the same logical name are tiled differently.
        """
        if not isinstance(argument, str):
            raise TypeError(f"logical_axis_rules: argument is a path, not {shown(argument)}")
        specs = {path: spec for path, _, spec in self.arguments()}
        return logical_axis_rules(specs, paths_of(self.module, argument, names))

    def verify(self, target: str, *, cycles: bool = False) -> Verification:
        """Compiles the plan with the target's compiler, and compares with the simulation.

        No hardware is needed. Compilation for TPUs ends with the schedule and the buffer assignment
        unless cycles are asked for.

        Args:
          target: machine and topology with as many devices as the mesh, for example
            ``tpu_v5e:4x4``.
          cycles: generate code too, for the compiler's flops and cycles of kernels in `hlo`.
        """
        return verify(self.program, self._planned.model, Target.parse(target), cycles=cycles)

    # Files -------------------------------------------------------------------------------------

    @functools.cached_property
    def spec(self) -> PlanSpec:
        """Decisions of the plan, replayable on the same or another program."""
        return PlanSpec(
            function=self.module.name,
            fingerprint=self.fingerprint,
            mesh=self.mesh_shape,
            machine=self.machine.name,
            actions=self.actions,
            rewrites=self.rewrites,
            arguments=arguments_of(self.module),
            bound=self.known_bound,
            space=self.space,
            confirmed=self.confirmed,
        )

    def to_json(self) -> dict[str, Any]:
        """Decisions, simulated figures and versions, as JSON values."""
        data = {"format": FORMAT, **self.spec.to_json()}
        for path, _, spec in self.arguments():
            data["arguments"][path]["spec"] = str(spec)
        data["record_of"] = record_key(data)
        figures = {"seconds": self.cost.seconds, "peak_bytes": self.cost.peak_bytes}
        versions = {"partir_search": VERSION, "jax": jax.__version__}
        front = {"front": self.known_front.to_json()} if self.known_front else {}
        return {**data, **figures, **front, "versions": versions}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the plan as readable JSON, for `load_plan`."""
        write_text(path, json.dumps(self.to_json(), indent=1) + "\n")

    def save_trace(self, path: str | os.PathLike[str]) -> None:
        """Writes the simulated step as trace events, for ui.perfetto.dev and xprof.

        One track of compute, tracks for the links of each mesh axis, and a counter of live memory;
        of a pipeline the schedule, with a track for each stage. `compare_trace` compares the
        simulation with a measured profile.

        Args:
          path: the file: JSON for ui.perfetto.dev, compressed if its name ends in `.gz`; or a
            profile for xprof, `logs/plugins/profile/plan/plan.xplane.pb` for `--logdir=logs`.
        """
        file = pathlib.Path(validators.path("path", path))
        name = f"{self.module.name} on {self.machine.name} (simulated)"
        events = trace_events(self.timeline, name)
        if self.timetable:
            events["traceEvents"] += schedule_events(self.timetable, self.cost.seconds)
        profile = file.suffix == ".pb"
        write_bytes(
            file, encoded_xspace(events) if profile else encoded(events, file.suffix == ".gz")
        )

    def save_search(self, folder: str | os.PathLike[str]) -> None:
        """Writes the search of each automatic tactic as `search.json` and `search.svg`."""
        where = make_folder(folder)
        for i, search in enumerate(self.searches):
            save_search(search, where / (f"search_{i}" if i else ""))

    def __copy__(self) -> Plan:
        other = self._with(self._planned)
        other.basis, other.known_front = self.basis, self.known_front
        other.confirmed = self.confirmed
        return other

    def _repr_html_(self) -> str:
        return plan_html(self)

    def __treescope_repr__(self, path: str | None, subtree_renderer: Any) -> Any:
        """The arguments as trees; a picture of an argument's tiles opens on a click."""
        from treescope.repr_lib import render_object_constructor

        shown = {"mesh": self.mesh, "planned_arrays": self.planned_arrays}
        return render_object_constructor(Plan, shown, path, subtree_renderer)

    def __repr__(self) -> str:
        return f"Plan({self.module.name}, mesh<{self.mesh_shape}>, {self.cost})"


def spec_of(plan: Plan | PlanSpec) -> PlanSpec:
    """PlanSpec of a plan.

    Raises:
      TypeError: `plan` is neither a Plan nor a PlanSpec.
    """
    if isinstance(plan, PlanSpec):
        return plan
    if not isinstance(plan, Plan):
        raise TypeError(f"plan is a Plan or what load_plan reads, not {shown(plan)}")
    return plan.spec
