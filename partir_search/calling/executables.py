"""Plans and compiled programs of one function, by call signature."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import warnings
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding

from partir_search.arguments import Buffers, Moves, Returned, check_alive
from partir_search.arguments.axes import AnyMesh, within
from partir_search.arguments.placement import place, struct_of
from partir_search.calling.direct_calls import direct_jit
from partir_search.calling.leaves import FlatArguments, Leaves, dynamic_signature, keys_of
from partir_search.calling.plain_calls import plain_calls
from partir_search.calling.stopped import StoppedPlannings
from partir_search.frontends.refs import value, written
from partir_search.lowering.local_ir import LocalProgram
from partir_search.lowering.scheduling.schedule import schedule_for
from partir_search.lowering.shard_map import (
    argument_specs,
    lifted_shardings,
    lifted_specs,
    sharded,
    split_mesh,
    without_context,
)
from partir_search.plan.dump import dump
from partir_search.plan.multihost import check_agreement
from partir_search.plan.plan import Plan
from partir_search.plan.planned import collector_paused
from partir_search.planning.options import Options
from partir_search.planning.remedies import DoesNotFit, oom_message
from partir_search.planning.trace import Call, Traced
from partir_search.rules.construct import weakened
from partir_search.shapes import ShapesPipeline
from partir_search.simulator.target.known_traits import traits_of


@dataclasses.dataclass(frozen=True)
class Entry:
    """A plan and its executable for one signature.

    Attributes:
      name: name of the function.
      plan: the plan.
      traced: the traced call.
      jitted: the partitioned function under `jax.jit`.
      flat: `jitted` with one `Leaves` per argument, and `Leaves` as the result.
      direct: the partitioned function under `jax.jit` with shardings of arguments, in place of
        `flat`; None if a call has duties (see `direct_jit`).
      arguments: converter of flat leaves to the arguments of `flat`.
      shardings: sharding of each flat argument.
      lifted: large closed-over arrays, as the first argument of `jitted`; () without any.
      paths: path of each flat argument.
      buffers: check of donated buffers.
      moves: record of moved arguments.
    """

    name: str
    plan: Plan
    traced: Traced
    jitted: Any
    flat: Any
    direct: Any
    arguments: FlatArguments
    shardings: tuple[NamedSharding, ...]
    lifted: tuple[list[Any], ...]
    paths: tuple[str, ...]
    buffers: Buffers
    moves: Moves

    def on(self, mesh: Mesh) -> tuple[Callable[..., Any], list[NamedSharding]]:
        """The program as a function of traced leaves and lifted arrays, and the shardings of both.

        Args:
          mesh: the step's mesh, possibly with different axis types.
        """
        program = self.plan.program
        split = split_mesh(mesh, program.partition.mesh)
        specs = (*argument_specs(program), *lifted_specs(program))
        scheduled = schedule_for(program, traits_of(mesh))
        return sharded(scheduled, mesh), [NamedSharding(split, s) for s in specs]

    def weakened(self, out: Sequence[Any]) -> list[Any]:
        """Results of the program, with weak types restored."""
        return [weakened(x) if w else x for x, w in zip(out, self.traced.weak, strict=True)]

    def run(self, leaves: Sequence[Any]) -> Any:
        """Places the leaves of a call and runs the executable."""
        try:
            placed = list(map(place, leaves, self.shardings))
        except RuntimeError:
            check_alive(self.name, leaves, self.paths)
            raise
        self.buffers.check(leaves)
        self.moves.note(id(self), leaves, placed, self.paths)
        results = self.execute(placed)
        self.buffers.returned(x for x in results if x is not None)
        return self.traced.out_tree.unflatten(results)

    def check(self, leaves: Sequence[Any], changed: Iterable[int], deleted: bool) -> None:
        """Checks the leaves of a call after a checked call, and forgets what that call moved.

        Args:
          leaves: flat arguments.
          changed: positions of leaves that are neither arguments nor results of the earlier call.
          deleted: True if an array among the leaves was deleted.
        """
        if deleted:
            check_alive(self.name, leaves, self.paths)
        self.buffers.check_changed(leaves, changed)
        self.moves.note(id(self), (), (), ())

    def execute(self, leaves: Sequence[Any]) -> Sequence[Any]:
        """Flat results of the executable for placed leaves."""
        if self.direct is not None:
            placed, _ = self.traced.in_tree.unflatten(leaves)
            with within(self.plan.mesh):
                return jax.tree.leaves(self.direct(*placed))
        args, kwargs = self.arguments(leaves)
        with within(self.plan.mesh):
            out: Leaves = self.flat(*self.lifted, *args, **kwargs)
        return out.leaves

    def structs(self, call: Call) -> Any:
        """The call's arguments as ShapeDtypeStructs with the plan's shardings."""
        leaves, tree = jax.tree.flatten((call.args, call.kwargs))
        structs = [struct_of(x, s) for x, s in zip(leaves, self.shardings, strict=True)]
        return jax.tree.unflatten(tree, structs)


class Executables:
    """Plans and executables of one function, created on first use of a signature."""

    def __init__(
        self,
        fun: Callable[..., Any],
        plain: Any,
        name: str,
        options: Options,
        similar: dict[Hashable, Plan] | None = None,
    ) -> None:
        """Executables of `fun`.

        Args:
          fun: the function.
          plain: `fun` under `jax.jit`, with the user's static and donated arguments.
          name: name of the function, for messages.
          options: options of `auto_partition`.
          similar: plans of functions with possibly the same program (for example after an optimizer
            object was recreated), by signature. New plans are added.
        """
        self._similar = {} if similar is None else similar
        self._stopped = StoppedPlannings(name, options)
        options = dataclasses.replace(options, journal=self._stopped.journal)
        self._fun, self._plain, self._name, self._options = fun, plain, name, options
        self._pipeline = ShapesPipeline(fun, plain, name, options)
        self._moves, self._returned = Moves(name), Returned()
        self._plans: dict[Hashable, tuple[Plan, Traced]] = {}
        self._by_shape: dict[Hashable, Plan] = {}
        self._first: dict[Hashable, Plan] = {}
        self.entries: dict[Hashable, Entry] = {}

    def planned(
        self, call: Call, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> tuple[Plan, Traced]:
        """The plan of a call and the traced call; planned on first use."""
        key, mesh = call.key(), self._options.here
        if key not in self._plans:
            again = functools.partial(self._plan_with, call, args, kwargs)
            with collector_paused(), plain_calls(), self._stopped.watched(key, again):
                self._plans[key] = self._make(self._pipeline, call, args, kwargs)
                self._dump(self._plans[key][0])
            self._first.setdefault(call.program_key(), self._plans[key][0])
            self._by_shape[call.plan_key()] = self._similar[call.plan_key()] = self._plans[key][0]
        plan, traced = self._plans[key]
        if plan.mesh != mesh:
            plan = plan.on(mesh)
            self._plans[key] = plan, traced
        return plan, traced

    def _dump(self, plan: Plan) -> None:
        """Writes the passes of a plan to `dump_dir`; plans after the first go to subfolders."""
        folder = self._options.dump_dir
        if folder is not None:
            dump(plan, folder / plan.fingerprint if self._similar else folder)

    def best_so_far(self, call: Call, args: Sequence[Any], kwargs: dict[str, Any]) -> Plan:
        """The plan of the best strategy of a stopped planning of a call."""
        again = functools.partial(self._plan_with, call, args, kwargs)
        with collector_paused(), plain_calls():
            return self._stopped.completed(call.key(), again)

    def _plan_with(
        self, call: Call, args: Sequence[Any], kwargs: dict[str, Any], options: Options
    ) -> Plan:
        """The plan of a call with other options; not cached."""
        pipeline = ShapesPipeline(self._fun, self._plain, self._name, options)
        return self._make(pipeline, call, args, kwargs)[0]

    def _make(
        self, pipeline: ShapesPipeline, call: Call, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> tuple[Plan, Traced]:
        known = self._by_shape.get(call.plan_key())
        base = self._first.get(call.program_key())
        similar = self._similar.get(call.plan_key())
        if known is None and base is None and similar is not None:
            with contextlib.suppress(ValueError):  # `similar` has a different program
                return pipeline.make(call, args, kwargs, similar)
        return pipeline.remake(call, args, kwargs, known, base)

    def free_plan(self, call: Call, args: Sequence[Any], kwargs: dict[str, Any]) -> Plan:
        """Plans a call independently of earlier plans."""
        with collector_paused(), plain_calls():
            return self._pipeline.make(call, args, kwargs)[0]

    def known_plans(
        self, call: Call, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> dict[str, Plan]:
        """Plans of the known strategies, by name."""
        with collector_paused(), plain_calls():
            return self._pipeline.known_plans(call, args, kwargs)

    def entry(self, call: Call, args: Sequence[Any], kwargs: dict[str, Any]) -> Entry:
        """The executable of a call; built on first use.

        Raises:
          DoesNotFit: the plan exceeds the memory allowed by the goals, and `on_overflow="raise"`.
        """
        key = call.key(), self._options.here
        entry = self.entries.get(key)
        if entry is None:
            check_alive(self._name, call.leaves(), call.paths())
            plan, traced = self.planned(call, args, kwargs)
            with (
                jax.ensure_compile_time_eval()
            ):  # cached values must not belong to an enclosing trace
                entry = self.entries[key] = self._build(plan, traced, [n for n, _ in call.statics])
        return entry

    def clear(self) -> None:
        """Removes all plans and executables."""
        self._plans.clear()
        self._by_shape.clear()
        self._first.clear()
        self._stopped.clear()
        self.entries.clear()

    def _check_fit(self, plan: Plan) -> None:
        """Warns about a plan over the memory limit.

        Raises:
          DoesNotFit: the plan came from a search, and `on_overflow="raise"`.
        """
        if plan.fits:
            return
        cost = dataclasses.replace(plan.cost, peak_bytes=plan.peak_bytes)
        message = oom_message(plan.memory_limit, cost, plan.remedies())
        if self._options.on_overflow == "raise" and plan.searches:
            raise DoesNotFit(message)
        warnings.warn(message, stacklevel=2)

    def _build(self, plan: Plan, traced: Traced, statics: Sequence[str]) -> Entry:
        self._check_fit(plan)
        mesh = plan.mesh
        check_agreement(plan, mesh)
        mapped = sharded(schedule_for(plan.program, traits_of(mesh)), mesh)

        lifted: tuple[list[Any], ...] = ()
        if plan.program.lifted:
            lifted = (_lifted(plan.program, mesh),)

        def partitioned(*args: Any, **kwargs: Any) -> list[Any]:
            own, args = args[: len(lifted)], args[len(lifted) :]
            leaves = jax.tree.leaves((args, kwargs))
            out = mapped(*map(value, leaves), *jax.tree.leaves(own))
            out = [weakened(x) if w else x for x, w in zip(out, traced.weak, strict=True)]
            return written(leaves, plan.module.ties, out)

        flags = jax.tree.unflatten(traced.in_tree, traced.donated)
        donate = [i + len(lifted) for i, a in enumerate(flags[0]) if _all(a)]
        donate_names = [k for k, a in flags[1].items() if _all(a)]
        signature = dynamic_signature(self._fun, statics, ["constants"][: len(lifted)])

        def jitted(make: Callable[[Sequence[Any]], Any]) -> Any:
            def run(*args: Any, **kwargs: Any) -> Any:
                return make(partitioned(*args, **kwargs))

            run.__name__ = run.__qualname__ = self._name
            run.__signature__ = signature  # type: ignore[attr-defined]
            shardings = None if isinstance(mesh, AbstractMesh) else make(plan.flat_out_shardings())
            return jax.jit(
                without_context(run),
                donate_argnums=donate or None,
                donate_argnames=donate_names or None,
                out_shardings=shardings,
                keep_unused=True,
            )

        def in_trees(*args: Any) -> Any:
            return traced.out_tree.unflatten(partitioned(*args))

        in_trees.__name__ = in_trees.__qualname__ = self._name
        in_trees.__signature__ = signature  # type: ignore[attr-defined]
        given = tuple(plan.flat_in_shardings())
        direct = None
        if not lifted:
            results_on = plan.flat_out_shardings()
            direct = direct_jit(
                in_trees, traced, given, jax.tree.unflatten(traced.out_tree, results_on), mesh
            )
        results = keys_of(traced.out_tree.unflatten(range(traced.out_tree.num_leaves)))
        arguments, paths = plan.module.body.args, plan.module.arg_paths
        return Entry(
            name=self._name,
            plan=plan,
            traced=traced,
            jitted=jitted(traced.out_tree.unflatten),
            flat=jitted(functools.partial(Leaves, results)),
            direct=direct,
            arguments=FlatArguments(traced.in_tree),
            shardings=given,
            lifted=lifted,
            paths=paths,
            buffers=Buffers(
                self._name,
                paths,
                [v.type.nbytes for v in arguments],
                traced.donated,
                self._returned,
            ),
            moves=self._moves,
        )


def check_runnable(name: str, mesh: AnyMesh, leaves: Sequence[Any]) -> Mesh:
    """The mesh of a call of the function `name` with arrays.

    Raises:
      TypeError: a leaf is a ShapeDtypeStruct.
      ValueError: the mesh has no devices.
    """
    if any(isinstance(x, jax.ShapeDtypeStruct) for x in leaves):
        raise TypeError(
            f"{name} was called with a ShapeDtypeStruct; use .plan(...) or .lower(...)"
            " for abstract arguments, and arrays to run"
        )
    if not isinstance(mesh, Mesh):
        raise ValueError(
            f"{name} is partitioned over an AbstractMesh, which has no devices to run"
            " on; use .plan(...), or a mesh from jax.make_mesh"
        )
    return mesh


def check_lowerable(name: str, mesh: AnyMesh) -> AnyMesh:
    """The mesh on which the function `name` is lowered.

    Raises:
      ValueError: an AbstractMesh with Explicit axes, for which jax asks for devices.
    """
    if isinstance(mesh, AbstractMesh) and AxisType.Explicit in mesh.axis_types:
        raise ValueError(
            f"{name} cannot be lowered with explicit_results over an AbstractMesh, as jax asks for"
            " its devices; use .plan(...), a mesh from jax.make_mesh, or explicit_results=False"
        )
    return mesh


def _lifted(program: LocalProgram, mesh: AnyMesh) -> list[Any]:
    """Large closed-over arrays on the mesh, or ShapeDtypeStructs for a mesh without devices."""
    if isinstance(mesh, Mesh):
        shardings = lifted_shardings(program, mesh)
        constants = program.partition.module.constants
        return [place(constants[i], s) for i, s in zip(program.lifted, shardings, strict=True)]
    values = (program.partition.module.values[i] for i in program.lifted)
    return [jax.ShapeDtypeStruct(v.type.shape, v.type.dtype) for v in values]


def _all(tree: Any) -> bool:
    leaves = jax.tree.leaves(tree)
    return bool(leaves) and all(leaves)
