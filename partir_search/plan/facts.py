"""Properties of a plan derived from its actions."""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from partir_search.ir.argument_paths import nearest
from partir_search.ir.core import Module, Op, Value
from partir_search.ir.partition import Partition
from partir_search.ir.printer import print_partition
from partir_search.ir.printing.paths import op_paths
from partir_search.lowering.local_ir import LocalProgram
from partir_search.lowering.local_printer import print_local
from partir_search.lowering.reshard_steps import COLLECTIVES
from partir_search.lowering.scheduling.schedule import schedule_for
from partir_search.messages import validators
from partir_search.messages.renamed import warn_renamed
from partir_search.messages.wording import shown
from partir_search.plan.alternatives import Alternative, Change
from partir_search.plan.basis import Basis
from partir_search.plan.collectives import Collective, collectives_of
from partir_search.plan.confirmation import Confirmation
from partir_search.plan.context import PlanContext
from partir_search.plan.emission import emission
from partir_search.plan.explain import conflicts, why_replicated
from partir_search.plan.front import Front
from partir_search.plan.pass_record import PassRecord, PassRecords
from partir_search.plan.plan_bound import PlanBound
from partir_search.plan.planned import Planned, SearchReport, collector_paused
from partir_search.plan.remedy import Remedy
from partir_search.plan.rewrites import Rewrites, Rewritten
from partir_search.plan.search_space import SearchSpace
from partir_search.plan.serialization import fingerprint
from partir_search.plan.shardings import Layouts
from partir_search.propagation.actions import Action
from partir_search.segments.segment import Segments
from partir_search.segments.split import segments_of
from partir_search.simulator.cost import Cost, OpCost
from partir_search.simulator.lower_bounds import products_bytes
from partir_search.simulator.simulator import Simulation
from partir_search.simulator.target.known_traits import traits_of
from partir_search.simulator.target.machine import Machine
from partir_search.simulator.timeline import Timeline, timeline

MOST_LIVE = 100_000  # values at the peak that a timeline lists


class PlanFacts(Layouts, Rewritten):
    """Program, cost and layouts of a plan (see `Plan`)."""

    def __init__(self, planned: Planned, rewrites: Rewrites, context: PlanContext) -> None:
        super().__init__(planned, context)
        self.rewrites = rewrites
        self.machine: Machine = context.machine
        self.seed: int = context.seed
        self.memory_limit: float = context.memory_limit
        self.actions: tuple[Action, ...] = planned.actions
        self.searches: tuple[SearchReport, ...] = planned.reports
        self.seconds: dict[str, float] = planned.seconds
        self.basis: Basis | None = None
        self.known_front: Front[Any] | None = None  # once found
        self.confirmed: Confirmation | None = planned.saved_confirmation

    @property
    def cost(self) -> Cost:
        """Simulated cost per step on one device; simulated on first access in a derived plan."""
        return self._planned.cost

    @property
    def passes(self) -> PassRecords:
        """Records of the passes from the trace to emission.

        The first access traces the emitted program as jax, as long as a trace of the call takes,
        and compiles nothing. Later accesses return the same records.
        """
        return PassRecords((*self._context.passes, *self._planned.passes, self._emission))

    @functools.cached_property
    def _emission(self) -> PassRecord:
        return emission(self.program, self._context.mesh)

    @property
    def program(self) -> LocalProgram:
        """The device-local program, as simulated and emitted."""
        return self._planned.program

    @property
    def sketch(self) -> LocalProgram:
        """The device-local program without the ops that need no communication."""
        return self._planned.sketch

    @property
    def partition(self) -> Partition:
        return self._planned.sketch.partition

    @property
    def proven(self) -> bool:
        """True if every search enumerated its space: the plan is optimal under the cost model."""
        return bool(self.searches) and all(s.proven for s in self.searches)

    @functools.cached_property
    def bound(self) -> PlanBound | None:
        """Lower bound of the seconds of all plans of the space of the only search; None without.

        The plans of the space recompute nothing. The first access finds the bound as far as the
        search needed none, in a part of the time of the search; beside a plan with recomputation
        no limit of memory holds for the plans of the space.
        """
        found = self.known_bound
        if found is None and self.rewrites.remat and len(self.searches) < 2:
            with collector_paused():
                return self._context.bound(self)
        return found

    @property
    def known_bound(self) -> PlanBound | None:
        """`bound` by the search, by a file or by an earlier access.

        The rest of the work on the search's own bound is done, if left to the first access.
        A search on a program with recomputation or microbatches of the planner's bounds no plan
        without them, and says nothing.
        """
        if "bound" in self.__dict__:
            return self.bound
        if not self.searches:
            return self._planned.saved_bound
        report = self.searches[0]
        rewritten = (self.rewrites.remat and not report.plain) or self.rewrites.microbatches > 1
        if len(self.searches) > 1 or rewritten or report.bound is None:
            return None
        found = self.cost if self.rewrites.remat else report.cost
        return PlanBound(report.bound, found.seconds, report.bound_without)

    @property
    def short_of_memory(self) -> bool:
        """True if segments of the forward pass run again because memory requires it."""
        stored = self.peak_without_remat
        return bool(self.rewrites.remat) and (stored is None or stored > self.memory_limit)

    @property
    def space(self) -> SearchSpace | None:
        """Space of the search; None if a schedule decided all tilings."""
        if self.searches:
            return self.searches[-1].space
        return self._planned.saved_space

    @property
    def planned(self) -> Planned:
        """The program with the plan's actions applied."""
        return self._planned

    @property
    def rewrite_passes(self) -> tuple[PassRecord, ...]:
        """Records of the passes from the trace to the last rewrite."""
        return self._context.passes

    def ir(self, scope: str | None = None, *, full: bool = False) -> str:
        """Text of the program as tile and sum loops.

        Args:
          scope: prints only the ops of this `jax.named_scope` or block (`layers/0`); "forward of
            layer_0" and "backward of layer_0" restrict the output to one pass.
          full: prints every op with all attributes. By default a run of elementwise ops is one
            line, and layers equal up to names are printed once.

        Raises:
          ValueError: no op was traced under `scope`.
        """
        if scope is None:
            return print_partition(self.partition, full=full)
        validators.text("ir: scope", scope, "the name of a jax.named_scope")
        name, backward = scope, None
        for word, meant in (("forward of ", False), ("backward of ", True)):
            if scope.startswith(word):
                name, backward = scope.removeprefix(word), meant

        paths = ["/".join(path) for path in op_paths(self.module)]
        whole = any(f"/{name}/" in f"/{path}/" for path in paths)

        def within(op: Op) -> bool:
            inside = f"/{name}/" in f"/{paths[op.id]}/" if whole else name in op.scope
            return inside and backward in (None, op.backward)

        if not any(map(within, self.module.ops)):
            scopes = {path for op in self.module.ops for path in (op.scope, paths[op.id])}
            near = nearest(name, scopes - {""}, limit=4) or "none"
            raise ValueError(f"ir: no op was traced under {scope!r}; scopes near it are: {near}")
        return print_partition(self.partition, within, full=full)

    def local_ir(self) -> str:
        """Text of the device-local program with its collectives, as simulated and emitted."""
        return print_local(self.program)

    @property
    def collectives(self) -> tuple[Collective, ...]:
        """Planned collectives in program order, then the collectives of the user's `shard_map`s."""
        return collectives_of(self._planned.sketch)

    @property
    def collective_counts(self) -> dict[str, int]:
        """Number of collectives in the program text, by kind (one in a loop body counts once)."""
        found = collections.Counter(c.kind for c in self.collectives)
        return {kind: found[kind] for kind in COLLECTIVES}

    @property
    def sent_bytes(self) -> float:
        """Bytes sent by one device per step."""
        return sum(self.cost.bytes_by_kind.values())

    @property
    def bound_bytes(self) -> float:
        """Lower bound on the bytes sent by one device for the program's products.

        The bound assumes that no operand starts replicated; see `simulator/lower_bounds.py`.
        """
        return products_bytes(self.module, self.partition.rules, self.mesh_shape.devices)

    def breakdown(self) -> tuple[OpCost, ...]:
        """Simulated seconds of each kernel and collective, most expensive first."""
        return self._breakdown

    @functools.cached_property
    def _breakdown(self) -> tuple[OpCost, ...]:
        return self._planned.model.breakdown(self._planned.sketch)

    @functools.cached_property
    def kernel_costs(self) -> tuple[OpCost, ...]:
        """`breakdown` without the names of traits, which tables of seconds do not show."""
        return self._planned.model.breakdown(self._planned.sketch, with_traits=False)

    @functools.cached_property
    def simulation(self) -> Simulation:
        """Simulation of the step with all intermediate results; `print` shows each."""
        return self._planned.model.simulate(self.program, record=True)

    def segments(self, mesh: Any = None) -> Segments:
        """Stretches of the device-local program, each unique one once, cut to run by itself.

        Args:
          mesh: `jax.sharding.Mesh` of the devices to run segments on, if not the plan's own; the
            order of instructions and the barriers are then of that mesh's compiler.
        """
        traits = self._planned.cache.traits if mesh is None else traits_of(mesh)
        return segments_of(schedule_for(self.program, traits), self._planned.model)

    @functools.cached_property
    def timeline(self) -> Timeline:
        """Timeline of the simulated step: compute, collectives per axis, and live memory."""
        with collector_paused():
            return timeline(self._planned.model, self.program, self.simulation, MOST_LIVE)

    def conflicts(self) -> list[str]:
        """Conflicts as text: the op, the mesh axis, and each operand with its requested factor."""
        return conflicts(self._planned)

    def why_replicated(self, value: Value) -> str:
        """Why no axis tiles a value."""
        if not isinstance(value, Value):
            raise TypeError(
                f"why_replicated takes a value of plan.arguments(), not {shown(value)};"
                " explain(path) takes an argument's path"
            )
        return why_replicated(self._planned, value)

    def why_whole(self, value: Value) -> str:
        """Deprecated name of `why_replicated`."""
        warn_renamed("Plan.why_whole", "why_replicated")
        return self.why_replicated(value)

    def opaque(self) -> Mapping[str, tuple[int, str]]:
        """Primitives without a rule, each with its number of ops and the first op's source line."""
        found: dict[str, tuple[int, str]] = {}
        for op in self.module.ops:
            if self.partition.rules[op.id].opaque:
                n, where = found.get(op.prim, (0, op.source))
                found[op.prim] = (n + 1, where)
        return found

    @functools.cached_property
    def fingerprint(self) -> str:
        """Hash of the traced program's arguments and ops."""
        return fingerprint(self.original)

    @property
    def original(self) -> Module:
        """The traced program, before padding, rematerialization and all further rewrites."""
        return self._context.original

    @property
    def peak_bytes(self) -> float:
        """Peak bytes on one device, by the compiler if the plan is confirmed, else simulated."""
        found = self.confirmed.chosen.compiled_peak_bytes if self.confirmed else None
        return self.cost.peak_bytes if found is None else found

    @property
    def figures(self) -> dict[str, float]:
        """Simulated cost of a step as numbers by name, for logs: `seconds`, `peak_bytes`, ...

        Names of bytes sent have two parts: `bytes_by_axis/batch`, `bytes_by_kind/all_reduce`.
        """
        found: dict[str, float] = {}
        for name, figure in dataclasses.asdict(self.cost).items():
            parts = figure if isinstance(figure, dict) else {"": figure}
            found |= {f"{name}/{part}".rstrip("/"): float(x) for part, x in parts.items()}
        found["peak_bytes"], found["memory_limit"] = self.peak_bytes, float(self.memory_limit)
        return found

    @property
    def fits(self) -> bool:
        """True if `peak_bytes` are within the limit of memory."""
        if self.confirmed is None and self._planned.most_peak_bytes <= self.memory_limit:
            return True
        return self.peak_bytes <= self.memory_limit

    @functools.cached_property
    def alternatives(self) -> tuple[Alternative, ...]:
        """Known strategies on this plan's form of the program, best first; () without a search.

        The first access costs them on the whole program, as the plan is.
        """
        with collector_paused():
            return self._context.alternatives(self)

    @functools.cached_property
    def changes(self) -> tuple[Change, ...]:
        """Five changes by the user with figures, the fewest seconds per example first.

        The first access costs other mesh shapes, batches, types and options. No search runs.
        """
        with collector_paused():
            return self._context.changes(self)

    @property
    def peak_without_remat(self) -> float | None:
        """Peak bytes of the same decisions with no segment recomputed; None if unknown."""
        return self._planned.peak_without_remat

    def remedies(self) -> list[Remedy]:
        """Remedies for a plan over the memory limit, cheapest first."""
        return list(self._remedies)

    @functools.cached_property
    def _remedies(self) -> list[Remedy]:
        with collector_paused():
            return self._context.remedies(self)
