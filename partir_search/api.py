"""`auto_partition`, the decorator."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, ParamSpec, TypeVar

from partir_search.arguments.axes import AnyMesh
from partir_search.calling.partitioned import AutoPartitioned
from partir_search.mcts.goals import Goal
from partir_search.messages.files import make_folder
from partir_search.messages.renamed import renamed_option
from partir_search.passes.group_arguments import Group
from partir_search.plan.cache import PlanCache
from partir_search.plan.plan import Plan
from partir_search.planning.checks import options as checks
from partir_search.planning.confirm.request import Confirm, confirm_of
from partir_search.planning.options import Options, Remat, Schedule, Stacking, machine_of
from partir_search.planning.planner import DEFAULT_EPISODES, Progress
from partir_search.profile.profile import Profile
from partir_search.simulator.cost import Cost
from partir_search.simulator.target.machine import Machine

P = ParamSpec("P")  # arguments of the user's function, and R its result
R = TypeVar("R")


def auto_partition(
    mesh: AnyMesh | None = None,
    *,
    schedule: Schedule = None,
    machine: Machine | str | None = None,
    goals: Sequence[Goal[Cost]] | None = None,
    episodes: int = DEFAULT_EPISODES,
    seed: int = 0,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Sequence[str] | None = None,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
    in_shardings: Any = None,
    out_shardings: Any = None,
    pad: bool = True,
    remat: Remat = "auto",
    stack: Stacking = "auto",
    microbatches: int | Sequence[int] = 1,
    scan_layers: Stacking = False,
    rings: bool = False,
    skewed_state: bool = False,
    shardings_like: Plan | None = None,
    cache: str | os.PathLike[str] | None = None,
    plan_on: Literal["every", "first"] = "every",
    groups: Sequence[Group] = (),
    explicit_results: bool | None = None,
    trip_counts: Mapping[str, int] | None = None,
    dump_dir: str | os.PathLike[str] | None = None,
    confirm: Confirm | str | bool | None = None,
    profile: Profile | str | os.PathLike[str] | None = None,
    on_overflow: Literal["raise", "warn"] = "raise",
    progress: bool | Progress | None = None,
    follow: Plan | None = None,
) -> Callable[[Callable[P, R]], AutoPartitioned[P, R]]:
    """Partitions a function written for one device over `mesh`.

    Args:
      mesh: a `jax.sharding.Mesh`, or an `AbstractMesh` to plan without devices; default: the mesh
        set by `jax.set_mesh`.
      schedule: tactics in order, or a `Plan` or `PlanSpec` to replay; None searches over all axes.
      machine: hardware figures or their name; default: the machine of the mesh's devices.
      goals: limits to satisfy and objectives whose sum is minimised; default: fit in the machine's
        memory, then the fewest seconds (`[Fit(machine.hbm_bytes), Fastest()]`).
      episodes: number of distinct strategies scored by a search, in addition to the known ones.
      seed: seed of the search; equal seeds give equal plans on every process.
      donate_argnums: positions of arguments whose buffers may be reused, as for `jax.jit`; default:
        the donated arguments of a jitted function.
      donate_argnames: the same by name.
      static_argnums: positions of compile-time constant arguments, as for `jax.jit`.
      static_argnames: the same by name.
      in_shardings: pytree prefix of NamedSharding, PartitionSpec or None (free) for positional
        arguments; never changed by the plan.
      out_shardings: the same for results.
      pad: True allows a search to pad indivisible dims inside the program if padding pays (a
        vocabulary of 50,257 on 8 devices); arguments and results keep their shapes.
      remat: recomputation of the forward pass in the backward pass, by segments: "auto" if no plan
        fits otherwise, True always, False never.
      stack: equal programs on several matrices (Newton-Schulz iterations of Muon, decompositions of
        Shampoo) computed once, on a stack whose matrices are spread over devices: "auto" if a
        search finds it better, True wherever some axis divides a stack, False never.
      microbatches: number of parts of the batch computed one after the other, with equal results,
        or several numbers, of which the first with a fitting plan is used. A step that needs the
        whole batch at once (batch normalisation) is refused (see `microbatched`).
      scan_layers: True writes equal layers as scans, compiled once instead of once per layer;
        "auto" if the plan fits and takes at most 10 % more simulated seconds; False never.
      rings: True lets searches partition in time as well (see `SpatialTemporal`,
        `CollectiveMatmul` and `ContextParallel`). Programs with attention are planned twice,
        unchanged and with each attention as one op.
      skewed_state: True stores train state in the block order used by rings, to save a rotation per
        step. Convert with `plan.skew` before the first step, with `plan.unskew` for checkpoints.
      shardings_like: the plan of another function (the train step, for an eval step). Arguments
        with the path and type of an argument of the plan get the same layout, and no search runs
        unless `schedule` asks for one. A path may be a suffix: `params/w` of `state/params/w`.
      cache: folder of plans. A plan that fits is stored under a hash of the program, the mesh,
        these options and the versions of this package and jax, and loaded by later processes.
      plan_on: with several processes, "every" process plans by itself, or the "first" process plans
        and all others replay its plan (all must call). Plans are compared before compilation.
      groups: groups of arguments to be tiled alike, ``[ps.group("state/**/q", "state/**/k")]``.
      explicit_results: True gives arguments and results the Explicit axes of `mesh`, with shardings
        in types; False, Auto axes. By default Auto axes, on which ordinary code runs, except within
        `jax.set_mesh(mesh)`.
      trip_counts: iterations of data-dependent loops assumed by the simulator, by glob on a loop's
        source line, name stack or name: ``{"*solver.py:41*": 12}``. Default: 100, shared by nested
        loops, or the program's own limit if smaller.
      dump_dir: folder for the program after each pass, `00_trace.ir` to `26_emit.ir`; plans of
        further signatures are written to subfolders. A search stopped by ctrl-C leaves
        `best_so_far.json` there, a plan.
      confirm: machine and topology whose compiler chooses the plan, ``tpu_v5e:2x4``, or True for
        the machine's usual topology. After the search, finalists within 10 % of its plan are
        compiled ahead of time, and the best by the compiler's cycles and memory is the plan
        (`plan.confirmed`). A `Confirm` sets limits of the compilations, or memory alone.
      profile: measured figures of the machine, or the path of their file (``here.json``, see
        `Profile`). Collectives, products and kernels that the profile has measured take its
        seconds in searches, bounds and reports. Another machine or version is an error.
      on_overflow: behavior of a call whose plan exceeds the memory allowed by the goals: "raise"
        `DoesNotFit` with remedies, or "warn". A plan from a schedule without a search only warns.
      progress: True or False for a progress bar (default: on a terminal or in a notebook), or a
        callback with the search's record after each episode.
      follow: deprecated name of `shardings_like`.

    Returns:
      A decorator for plain or jitted functions; see `AutoPartitioned`. Type checkers see the
        function's own signature.
    """
    mesh = checks.mesh_of(mesh)
    figures = machine_of(mesh, machine, profile)
    options = Options(
        mesh=mesh,
        schedule=schedule,
        machine=figures,
        goals=goals,
        episodes=episodes,
        seed=seed,
        in_shardings=in_shardings,
        out_shardings=out_shardings,
        pad=pad,
        remat=remat,
        stack=stack,
        microbatches=checks.microbatch_numbers(microbatches),
        scan_layers=scan_layers,
        on_overflow=on_overflow,
        progress=progress,
        rings=rings,
        skewed_state=skewed_state,
        shardings_like=renamed_option("follow", follow, "shardings_like", shardings_like, None),
        cache=None if cache is None else PlanCache(cache),
        plan_on=plan_on,
        groups=checks.group_list(groups),
        explicit_results=explicit_results,
        trip_counts=checks.counts_of_trips(trip_counts),
        dump_dir=None if dump_dir is None else make_folder(dump_dir, "dump_dir"),
        confirm=confirm_of(confirm, mesh, figures, plan_on),
    )
    checks.check_options(options)
    static = checks.chosen("static", static_argnums, static_argnames)
    donate = checks.chosen("donate", donate_argnums, donate_argnames)

    def partition(fun: Callable[P, R]) -> AutoPartitioned[P, R]:
        checks.check_function(fun, static, donate)
        return AutoPartitioned(fun, options, static, donate)

    return partition
