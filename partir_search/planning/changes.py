"""Changes by the user beside a plan, with figures: meshes, batches, types and options.

No search runs. Changes on the plan's mesh are costed with the plan's actions, further meshes with
the best known strategy, possibly improved by a search.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

from partir_search.ir.analysis.module_analysis import ModuleAnalysis
from partir_search.ir.mesh import MeshShape
from partir_search.lowering.cache import LocalCache
from partir_search.lowering.localize import localize
from partir_search.mcts.goals import scorer
from partir_search.messages.wording import amount
from partir_search.passes.narrow_floats import NARROW, WIDE, with_narrow_floats
from partir_search.passes.remat import find_segments
from partir_search.plan.alternatives import Change
from partir_search.plan.plan import Plan
from partir_search.planning.alternatives import Forms
from partir_search.planning.known_strategies import KnownMoves, Rank
from partir_search.planning.memory_fit import renamed_for
from partir_search.planning.recomputed_step import recomputed_figures
from partir_search.simulator.cost import Cost
from partir_search.simulator.simulator import CostModel
from partir_search.simulator.target.machine import Machine

MOST_CHANGES = 5
MOST_MESHES = 6  # other mesh shapes costed on the folded program
SHOWN_MESHES = 2
SLOW = 1.5  # on the plan's mesh, times the best strategy; slower ones are not tried on others
TIGHT = 0.5  # of the memory limit; below, recomputation is not worth a line
MIN_F32 = 0.9  # of the bytes of arguments in float32, for the figures of bfloat16
SAME = "this plan's actions"
ESTIMATED = "this plan's actions, estimated"


def changes_of(plan: Plan, forms: Forms) -> tuple[Change, ...]:
    """Five changes by the user, fitting changes first, then by seconds per example."""
    found = [
        *_other_meshes(plan, forms),
        *_other_batch(plan, forms),
        *_other_remat(plan, forms),
        *_narrow_floats(plan, forms),
        *_donation(plan),
    ]
    return tuple(sorted(found, key=lambda c: (not c.fits, c.relative))[:MOST_CHANGES])


def _change(plan: Plan, what: str, how: str, by: str, cost: Cost, examples: float = 1.0) -> Change:
    """Change with the figures of a cost.

    Args:
      examples: examples of a step after the change, relative to the plan.
    """
    return Change(
        what=what,
        how=how,
        plan=by,
        seconds=cost.seconds,
        relative=cost.seconds / plan.cost.seconds / examples if plan.cost.seconds else 1.0,
        peak_bytes=cost.peak_bytes,
        fits=cost.peak_bytes <= plan.memory_limit,
    )


# Meshes -----------------------------------------------------------------------------------------


def _other_meshes(plan: Plan, forms: Forms) -> Iterator[Change]:
    """The best further shapes of the mesh, by their best known strategies."""
    user = plan.mesh_shape.user
    shapes = _shapes(user, plan.machine)
    if not shapes or not plan.searches:
        return
    modules = list(forms.of(plan).values())[:: -1 if plan.remat else 1]
    planner = forms.planner_of(modules[0])
    score, own = scorer(planner.goals), KnownMoves(planner)
    ranked = own.ranked()
    if not ranked:
        return
    slow = SLOW * own.costs[ranked[0]].seconds
    likely = [name for name in ranked if own.costs[name].seconds <= slow]

    def rank(cost: Cost) -> Rank:
        return score(cost).rank()

    best: list[tuple[Rank, str, MeshShape, KnownMoves]] = []
    for shape in shapes:
        with contextlib.suppress(ValueError):  # fixed shardings may not fit another mesh
            known = KnownMoves(planner.on_mesh(shape))
            below = best[-1][0] if len(best) == SHOWN_MESHES else None
            if found := known.least(rank, likely, below, monotone=score.monotone):
                best.append((rank(found[1]), found[0], shape, known))
                best = sorted(best, key=lambda b: b[0])[:SHOWN_MESHES]
    for _, name, shape, known in best:
        cost = known.planned(name).cost
        order = sorted(shape.sizes) == sorted(user.sizes)
        what = "axes in another order" if order else "another mesh"
        again = ", all computed again" if plan.remat else ""
        yield _change(plan, what, str(shape), f"{name}{again}", cost)


def _shapes(mesh: MeshShape, machine: Machine) -> list[MeshShape]:
    """Further shapes with as many devices and axes, the most even first.

    Orders of equal sizes differ if axes have own links.
    """
    own = set(machine.axis_bytes_per_s) | set(machine.axis_hop_seconds)
    ordered = bool(own & set(mesh.names))
    found: dict[tuple[int, ...], tuple[int, ...]] = {
        mesh.sizes if ordered else tuple(sorted(mesh.sizes)): mesh.sizes
    }
    for sizes in _factorizations(mesh.devices, len(mesh.sizes)):
        found.setdefault(sizes if ordered else tuple(sorted(sizes)), sizes)
    others = [sizes for sizes in found.values() if sizes != mesh.sizes]
    others.sort(key=lambda sizes: (max(sizes), sizes))
    return [MeshShape(mesh.names, sizes) for sizes in others[:MOST_MESHES]]


def _factorizations(n: int, count: int) -> Iterator[tuple[int, ...]]:
    """Tuples of `count` factors with product `n`."""
    if count == 1:
        yield (n,)
        return
    for size in (d for d in range(1, n + 1) if n % d == 0):
        yield from ((size, *rest) for rest in _factorizations(n // size, count - 1))


# Batches, recomputation, types, donation -------------------------------------------------------


def _other_batch(plan: Plan, forms: Forms) -> Iterator[Change]:
    """Twice the batch."""
    cost = forms.twice(plan.spec)
    if cost is not None:
        yield _change(plan, "twice the batch", "shapes of the data", SAME, cost, 2.0)


def _other_remat(plan: Plan, forms: Forms) -> Iterator[Change]:
    """Without recomputation, or with all of it if memory is tight."""
    every = "all segments computed again", "remat=True"
    if not plan.remat:
        tight = plan.cost.peak_bytes > TIGHT * plan.memory_limit
        figures = recomputed_figures(plan, find_segments(plan.module)) if tight else None
        if figures:
            seconds, peak = figures
            cost = dataclasses.replace(plan.cost, seconds=seconds, peak_bytes=peak)
            yield _change(plan, *every, ESTIMATED, cost)
        return
    for module, what, how in (
        (forms.base, "no segment computed again", "remat=False"),
        (forms.all_recomputed, *every),
    ):
        if module is None or len(module.ops) == len(plan.module.ops):
            continue
        planner = forms.planner_of(module)
        if planner.mesh == plan.mesh_shape:
            planned, dropped = planner.replay_compatible(renamed_for(module, plan.actions))
            if not dropped:  # without some decisions the figures are of no plan worth having
                yield _change(plan, what, how, SAME, planned.cost)


def _narrow_floats(plan: Plan, forms: Forms) -> Iterator[Change]:
    """bfloat16 in place of float32, in a program whose arguments are in float32."""
    types = [v.type for v in plan.module.body.args]
    wide = sum(t.nbytes for t in types if t.dtype == WIDE)
    if wide < MIN_F32 * sum(t.nbytes for t in types) or any(
        v.type.dtype == NARROW for v in plan.module.values
    ):
        return
    module, rules = with_narrow_floats(plan.module), plan.partition.rules
    narrow = dataclasses.replace(
        plan.partition, module=module, analysis=ModuleAnalysis(module, rules)
    )
    program = localize(narrow, LocalCache(plan.machine.traits), sparse=True)
    cost = CostModel(module, rules, plan.machine).evaluate(program)
    yield _change(plan, "bfloat16 for float32", "state and batch", SAME, cost)


def _donation(plan: Plan) -> Iterator[Change]:
    """The train state donated, if no argument is."""
    module = plan.module
    if module.donated or not module.ties:
        return
    donated = dataclasses.replace(module, donated=frozenset(a for a, _ in module.ties))
    cost = plan.planned.model.with_donations(donated).evaluate(plan.sketch)
    saved = plan.cost.peak_bytes - cost.peak_bytes
    if saved > 0.02 * plan.cost.peak_bytes:
        what = f"the state donated, {amount(saved)} less at the peak"
        yield _change(plan, what, "donate_argnums=0", SAME, cost)
