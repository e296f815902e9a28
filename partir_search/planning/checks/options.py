"""Checks of the options of `auto_partition`, made when a function is decorated."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh

from partir_search.ir.mesh import MeshShape
from partir_search.mcts.goals import FewestBytes, Fit, Weighted
from partir_search.messages import validators
from partir_search.messages.wording import did_you_mean, shown
from partir_search.passes.group_arguments import Group
from partir_search.plan.plan import Plan
from partir_search.plan.spec import PlanSpec
from partir_search.planning.checks.schedule import check_tactics, known_axis
from partir_search.planning.options import Options
from partir_search.planning.tactics import TACTICS

JOINING = "+,~"  # several axes in a Tile, in a list of collectives, and a diagonal
EXAMPLE = 'jax.make_mesh((2, 4), ("batch", "model"))'


def mesh_of(mesh: Any) -> Mesh | AbstractMesh:
    """The given mesh, or the mesh of `jax.set_mesh` if None.

    Raises:
      TypeError: the value is no mesh, or None without `jax.set_mesh`.
      ValueError: the mesh has no axes, or an axis name with a separator of axis names.
    """
    found = _context_mesh() if mesh is None else mesh
    if found is None:
        raise TypeError(
            "auto_partition needs a mesh, and none is set: write"
            f" auto_partition({EXAMPLE}, ...), or call it under jax.set_mesh(mesh)"
        )
    if not isinstance(found, Mesh | AbstractMesh):
        if inspect.isroutine(found) or isinstance(found, jax.stages.Wrapped):
            raise TypeError(
                "auto_partition takes a mesh and returns a decorator: write @auto_partition(mesh)"
                f" above {getattr(found, '__name__', 'the function')}, not @auto_partition"
            )
        remedy = f"make one with {EXAMPLE}"
        raise TypeError(
            "auto_partition takes a jax.sharding.Mesh or AbstractMesh, not"
            f" {type(found).__name__}; {remedy}"
        )
    if not found.axis_names:
        raise ValueError(f"the mesh has no axes; make one with {EXAMPLE}")
    for name in found.axis_names:
        if isinstance(name, str) and (not name or set(name) & set(JOINING)):
            raise ValueError(
                f"mesh axis {name!r}: a name is not empty and has none of {' '.join(JOINING)},"
                " which join names of axes in plans ('batch+model'); rename the axis in"
                " jax.make_mesh"
            )
    return found


def _context_mesh() -> Mesh | AbstractMesh | None:
    """The mesh of `jax.set_mesh`, abstract inside a trace; None without `jax.set_mesh`."""
    try:
        mesh = jax.sharding.get_mesh()
        if mesh.axis_names:
            return mesh
    except ValueError:  # jax is tracing
        pass
    abstract = jax.sharding.get_abstract_mesh()
    return abstract if abstract.axis_names else None


def chosen(kind: str, argnums: Any, argnames: Any) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Positions and names of arguments marked by kind: "static" or "donate"."""
    return positions(f"{kind}_argnums", argnums), argument_names(f"{kind}_argnames", argnames)


def positions(name: str, given: Any) -> tuple[int, ...]:
    """Positions of arguments, for `donate_argnums` and `static_argnums`."""
    other = name.replace("argnums", "argnames")
    if isinstance(given, str):
        raise TypeError(f"{name} are positions of arguments; write {other}={given!r}")
    every = () if given is None else tuple(given) if _is_several(given) else (given,)
    for one in every:
        if isinstance(one, str):
            raise TypeError(f"{name} are positions of arguments; write {other}={one!r}")
        validators.whole_number(name, one)
    return tuple(map(int, every))


def argument_names(name: str, given: Any) -> tuple[str, ...]:
    """Names of arguments, for `donate_argnames` and `static_argnames`."""
    every = () if given is None else tuple(given) if _is_several(given) else (given,)
    for one in every:
        if not isinstance(one, str):
            other = name.replace("argnames", "argnums")
            raise TypeError(f"{name} are names of arguments, not {shown(one)}; {other}= takes ints")
    return every


def microbatch_numbers(given: Any) -> tuple[int, ...]:
    """Numbers of microbatches to choose from."""
    every = tuple(given) if _is_several(given) else (given,)
    if not every:
        raise ValueError("microbatches are numbers of at least 1, not (); 1 does not split a batch")
    for one in every:
        try:
            validators.whole_number("microbatches", one, 1)
        except ValueError:
            raise ValueError(f"microbatches are numbers of at least 1, not {given!r}") from None
    return tuple(map(int, every))


def counts_of_trips(given: Any) -> dict[str, int]:
    """Trip counts of the user's, by glob."""
    if given is not None and not isinstance(given, Mapping):
        raise TypeError(
            "trip_counts maps globs on loops to whole numbers of at least 1,"
            f" {{'*solver.py:41*': 12}}, not {shown(given)}"
        )
    for glob, count in (given or {}).items():
        whole = isinstance(count, int) and not isinstance(count, bool)
        if not isinstance(glob, str) or not whole or count < 1:
            raise ValueError(
                "trip_counts maps globs on loops to whole numbers of at least 1,"
                f" {{'*solver.py:41*': 12}}, not {glob!r} to {count!r}"
            )
    return dict(given or {})


def group_list(given: Any) -> tuple[Group, ...]:
    """The groups of `auto_partition(groups=...)`."""
    if isinstance(given, Group) or not _is_several(given):
        paths = given.paths if isinstance(given, Group) else ("state/**/q", "state/**/k")
        wanted = f"groups=[partir_search.group({', '.join(map(repr, paths))})]"
        raise TypeError(
            f"groups is a list of what partir_search.group(...) makes, not {shown(given)}; write"
            f" {wanted}"
        )
    for one in given:
        if not isinstance(one, Group):
            raise TypeError(f"groups are made by partir_search.group(...), not {shown(one)}")
    return tuple(given)


def _is_several(given: Any) -> bool:
    return isinstance(given, Sequence | set | frozenset) and not isinstance(given, str | bytes)


def check_options(o: Options) -> None:
    """Checks the types and values of all options, without tracing."""
    mesh = MeshShape(tuple(o.mesh.axis_names), tuple(o.mesh.axis_sizes))
    _check_schedule(o.schedule, mesh)
    for i, goal in enumerate(_goals(o.goals)):
        _check_goal(f"goals[{i}]", goal, mesh)
    validators.whole_number("episodes", o.episodes, 1)
    validators.whole_number("seed", o.seed)
    for name, known in (
        ("pad", (True, False)),
        ("remat", ("auto", True, False)),
        ("stack", ("auto", True, False)),
        ("scan_layers", ("auto", True, False)),
        ("rings", (True, False)),
        ("skewed_state", (True, False)),
        ("plan_on", ("every", "first")),
        ("explicit_results", (None, True, False)),
        ("on_overflow", ("raise", "warn")),
    ):
        validators.choice(name, getattr(o, name), known)
    _check_progress(o.progress)
    _check_shardings_like(o.shardings_like, mesh)
    links = (*o.machine.axis_bytes_per_s, *o.machine.axis_hop_seconds)
    for axis in dict.fromkeys(links):
        if axis not in mesh.names and (near := did_you_mean(axis, mesh.names)):
            warnings.warn(
                f"machine {o.machine.name!r} has links of axis {axis!r}, which the mesh"
                f" ({mesh}) does not have{near}",
                stacklevel=3,
            )


def _check_schedule(schedule: Any, mesh: MeshShape) -> None:
    if schedule is None or isinstance(schedule, Plan | PlanSpec):
        return
    if isinstance(schedule, str) or hasattr(schedule, "__fspath__"):
        raise TypeError(f"schedule is a path: pass partir_search.load_plan({str(schedule)!r})")
    if isinstance(schedule, TACTICS):
        raise TypeError(
            f"schedule is a list of tactics or a plan, not one tactic; write schedule=[{schedule}]"
        )
    if not isinstance(schedule, Sequence):
        remedy = ""
        if isinstance(schedule, type) and schedule in TACTICS:
            remedy = f"; write schedule=[{schedule.__name__}(...)]"
        elif isinstance(schedule, Mapping):
            remedy = "; write schedule=[ManualPartition({'batch/x': 0}, axis='batch')]"
        raise TypeError(f"schedule is a list of tactics or a plan, not {shown(schedule)}{remedy}")
    check_tactics(schedule, mesh)


def _goals(goals: Any) -> Sequence[Any]:
    if goals is None:
        return ()
    if not isinstance(goals, Sequence) or isinstance(goals, str):
        example = "; write goals=[partir_search.Fit(16e9), partir_search.Fastest()]"
        if hasattr(goals, "objective"):
            one = f"{goals.__name__}(...)" if isinstance(goals, type) else f"{goals}"
            example = f"; write goals=[{one}]"
        raise TypeError(f"goals is a list of goals, not {shown(goals)}{example}")
    if not goals:
        raise ValueError("goals is empty; None is [Fit(machine.hbm_bytes), Fastest()]")
    return goals


def _check_goal(where: str, goal: Any, mesh: MeshShape) -> None:
    if isinstance(goal, type):
        raise TypeError(f"{where} is {shown(goal)}; write {goal.__name__}(...)")
    for method in ("excess", "objective"):
        if not callable(getattr(goal, method, None)):
            raise TypeError(
                f"{where} is no goal: {shown(goal)} has no method {method}(cost); write Fit(bytes),"
                " Fastest(), FewestBytes(axis), Weighted(goal, weight) or a class with both methods"
            )
    if isinstance(goal, Fit):
        validators.number(f"{where}: Fit: bytes", goal.bytes, above=0)
    elif isinstance(goal, FewestBytes):
        validators.text(f"{where}: FewestBytes: axis", goal.axis, "the name of an axis")
        try:
            known_axis(mesh, goal.axis)
        except ValueError as error:
            raise ValueError(f"{where}: FewestBytes: {error}") from None
    elif isinstance(goal, Weighted):
        if isinstance(goal.weight, bool) or not isinstance(goal.weight, int | float):
            raise TypeError(f"{where}: Weighted: weight is a number, not {shown(goal.weight)}")
        _check_goal(f"{where}: Weighted: goal", goal.goal, mesh)


def _check_progress(progress: Any) -> None:
    if progress is None or isinstance(progress, bool):
        return
    if not callable(progress):
        raise TypeError(
            f"progress is True, False, None or a function of the search's record, not"
            f" {shown(progress)}"
        )
    try:
        inspect.signature(progress).bind(None)
    except ValueError:  # builtins without a signature
        return
    except TypeError as error:
        raise TypeError(
            f"progress: {shown(progress)} is called with one argument, the search's record: {error}"
        ) from None


def _check_shardings_like(plan: Any, mesh: MeshShape) -> None:
    if plan is None:
        return
    if not isinstance(plan, Plan):
        remedy = "pass the plan of a function: shardings_like=train_step.plan(state, batch)"
        if isinstance(plan, PlanSpec | str) or hasattr(plan, "__fspath__"):
            remedy = (
                "replay the saved plan first, auto_partition(mesh, schedule=load_plan(path))"
                "(train_step).plan(state, batch), and pass its plan"
            )
        raise TypeError(f"shardings_like is a Plan, not {shown(plan)}; {remedy}")
    plan_mesh = plan.mesh_shape.user
    if plan_mesh.names != mesh.names:
        raise ValueError(
            f"shardings_like is a plan for mesh<{plan_mesh}>, this is mesh<{mesh}>; pass a plan of"
            " a mesh with the same axes"
        )


Marked = tuple[Sequence[int], Sequence[str]]  # positions and names of arguments


def check_function(fun: Any, static: Marked, donate: Marked) -> None:
    """Checks the function to partition, and its static and donated arguments.

    Args:
      fun: the function.
      static, donate: positions and names of arguments.

    Raises:
      TypeError: `fun` is not callable, or already partitioned.
      ValueError: `fun` has no argument with a given position or name.
    """
    if not callable(fun):
        given = "its result" if isinstance(fun, tuple | Mapping) else shown(fun)
        raise TypeError(
            f"auto_partition(mesh) is given the function to partition, not {given}; write"
            " auto_partition(mesh)(step), and call that with the arguments"
        )
    name = getattr(fun, "__name__", "the function")
    if hasattr(fun, "known_plans"):
        raise TypeError(
            f"{name} is partitioned already; partition the plain function, its attribute .plain"
        )
    try:
        parameters = inspect.signature(fun).parameters.values()
    except (TypeError, ValueError):  # builtins without a signature
        return
    kinds = {p.kind for p in parameters}
    positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, _EITHER)]
    known = [p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, _EITHER)]
    for kind, (nums, names) in (("static", static), ("donate", donate)):
        for i in () if inspect.Parameter.VAR_POSITIONAL in kinds else nums:
            if not -len(positional) <= i < len(positional):
                raise ValueError(
                    f"{kind}_argnums={tuple(nums)}: {name} takes {len(positional)} positional"
                    f" arguments ({', '.join(positional)}), and none has position {i}"
                )
        for one in () if inspect.Parameter.VAR_KEYWORD in kinds else names:
            if one not in known:
                raise ValueError(
                    f"{kind}_argnames: {name} has no argument {one!r}; it has"
                    f" {', '.join(known)}{did_you_mean(one, known)}"
                )


_EITHER = inspect.Parameter.POSITIONAL_OR_KEYWORD


def check_maker(init_fn: Any) -> None:
    """Checks the argument of `AutoPartitioned.init`.

    Raises:
      TypeError: the argument is a state, not a function that returns the state.
    """
    if not callable(init_fn):
        raise TypeError(
            f"init takes a function that makes the state, not {shown(init_fn)}; write"
            " step.init(lambda: create_state(jax.random.key(0)), batch)"
        )
    try:
        inspect.signature(init_fn).bind()
    except ValueError:  # builtins without a signature
        return
    except TypeError as error:
        name = getattr(init_fn, "__name__", "init_fn")
        raise TypeError(
            f"init calls {name} without arguments: {error}; write step.init(lambda:"
            f" {name}(...), batch)"
        ) from None
