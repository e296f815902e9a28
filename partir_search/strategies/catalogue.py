"""Catalogue of the named strategies on every choice of mesh axes.

A search starts from the catalogue; its result is never behind the best entry.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Iterator, Sequence

from partir_search.ir.mesh import MeshShape
from partir_search.strategies.decisions import Axes
from partir_search.strategies.moves import (
    AlternateParallel,
    DataParallel,
    EdgeParallel,
    ExpertParallel,
    ModelParallel,
    OutputParallel,
    RingParallel,
    SequenceParallel,
    StrategyMove,
    TileContext,
    TileStacks,
    TileStages,
    Zero,
)
from partir_search.strategies.targets import StrategyTargets

ZEROS = {  # by code in titles, on any axes
    "Z1": Zero((), 2, once=True),
    "Z1P": Zero((), 3, once=True),
    "Z2": Zero((), 2),
    "Z3": Zero((), 3),
}


def named_strategies(
    mesh: MeshShape,
    axes: Sequence[str],
    targets: StrategyTargets,
    grids: bool = False,
    stages: Collection[str] = (),
) -> list[tuple[str, tuple[StrategyMove, ...]]]:
    """Named strategies on every choice of `axes`.

    Model parallelism takes one or several axes, or the minor sub-axes of one; data parallelism and
    ZeRO take the remaining axes, or ZeRO one of them. Steps with data arguments of several lengths
    get edge parallelism, steps with a mixture of experts get expert parallelism on axes of data
    parallelism, and steps with attention get context parallelism. Stacks of arrays, if any, are
    tiled on all axes.

    Args:
      axes: names of axes of the user's mesh.
      targets: of the graph of the step.
      grids: include tensor parallelism in two and three dims (SUMMA, 3D).
      stages: axes of the stages of a pipeline, taken by no other strategy.

    Returns:
      (title, moves) pairs with distinct titles, such as "BP(data)+MP(model)+Z3".
    """
    inside = [name for name in axes if name not in stages]
    if len(inside) < len(axes):
        first = TileStages(tuple(a for name in axes if name in stages for a in mesh.axes(name)))
        title = f"PP({mesh.label(first.axes)})"
        found = named_strategies(mesh, inside, targets, grids) if inside else []
        # Parameters outside of the layers, and state that the stages leave replicated; before the
        # ZeRO of other axes, which may take any dim.
        last = ModelParallel(first.axes, True), Zero(first.axes, 3)

        def within(moves: Sequence[StrategyMove]) -> tuple[StrategyMove, ...]:
            zero = tuple(m for m in moves if isinstance(m, Zero))
            return first, *(m for m in moves if m not in zero), *last, *zero

        return [(title, within(())), *((f"{title}+{name}", within(m)) for name, m in found)]
    plans: dict[str, tuple[StrategyMove, ...]] = {}
    given = set(axes)
    axes = [name for name in axes if name not in mesh.diagonal_names]
    every = tuple(a for name in axes for a in mesh.axes(name))

    def name(axes: Axes) -> str:
        return mesh.label(axes)

    def data(axes: Axes) -> tuple[StrategyMove, ...]:
        """Data parallelism axis by axis: a small batch takes the axes dividing it."""
        return tuple(DataParallel(mesh.axes(n)) for n in mesh.label(axes).split("+"))

    def zero(axes: Axes, kind: Zero) -> tuple[StrategyMove, ...]:
        names = mesh.label(axes).split("+")
        return tuple(dataclasses.replace(kind, axes=mesh.axes(n)) for n in names)

    def add(title: str, *moves: StrategyMove) -> None:
        if targets.stacks:
            title, moves = f"{title}+S({name(every)})", (TileStacks(every), *moves)
        plans.setdefault(title, moves)

    def add_data(
        rest: Axes,
        title: str,
        *moves: StrategyMove,
        first: StrategyMove | None = None,
        context: Axes = (),
    ) -> None:
        """Adds `moves` with data parallelism on `rest`, without and with ZeRO on axes of `rest`.

        Args:
          context: axes of context parallelism in `moves`, to replicate no state along.
        """
        base = (*([first] if first else []), *data(rest), *moves)
        title = f"BP({name(rest)}){title}"
        add(title, *base)
        single = [mesh.axes(n) for n in mesh.label(rest).split("+")]
        for code, each in ZEROS.items():
            if each.once and not (targets.totals if each.stage < 3 else targets.held):
                continue
            add(f"{title}+{code}", *base, *zero((*rest, *context), each))
            if len(single) > 1 and not context:
                for one in single:
                    add(f"{title}+{code}({name(one)})", *base, *zero(one, each))

    for r, c, d in mesh.triples:
        if not given.issuperset(mesh.names[a] for a in (r, c, d)):
            continue
        rest = tuple(a for a in every if a not in (r, c))
        rings = RingParallel((c, d))
        title = f"P({mesh.names[r]},{mesh.names[c]})"
        add(title, DataParallel((r,)), rings)
        if rest:
            add_data((*rest, r), f"+{title}", rings)
            add(f"MP({name(rest)})+{title}", ModelParallel(rest, False), DataParallel((r,)), rings)
    for m in _choices(mesh, axes):
        rest = tuple(a for a in every if a not in m)
        add(f"MP({name(m)})", ModelParallel(m, False))
        add_data(m, "")
        if targets.edges:
            edges = EdgeParallel(m)
            add(f"ES({name(m)})", edges)
            for code in ("Z2", "Z3"):
                add(f"ES({name(m)})+{code}", edges, *zero(m, ZEROS[code]))
        if targets.experts:
            experts = ExpertParallel(m)
            add_data(every, f"+EP({name(m)})", first=experts)
            if rest:
                moves = (ModelParallel(rest, True), SequenceParallel(rest))
                add_data(m, f"+EP({name(m)})+MP({name(rest)}, head)", moves[0], first=experts)
                add_data(m, f"+EP({name(m)})+MP({name(rest)}, head)+SP", *moves, first=experts)
        if targets.contexts:
            add(f"CP({name(m)})", TileContext(m))
        if not rest:
            continue
        if targets.contexts:
            add_data(rest, f"+CP({name(m)})", TileContext(m))
            add(f"MP({name(rest)})+CP({name(m)})", ModelParallel(rest, False), TileContext(m))
            for context in map(mesh.axes, axes) if name(m) in axes else ():
                if context == m:
                    continue
                title = f"+MP({name(m)}, head)+CP({name(context)})+SP"
                three = ModelParallel(m, True), TileContext(context), SequenceParallel(m)
                further = tuple(a for a in rest if a not in context)
                if further:
                    add_data(further, title, *three, context=context)
                else:
                    add(title[1:], *three)
        for head in (False, True):
            title = f"+MP({name(m)}{', head' if head else ''})"
            add_data(rest, title, ModelParallel(m, head))
            add_data(rest, title + "+SP", ModelParallel(m, head), SequenceParallel(m))
    for title, grid in _grids(mesh, axes) if grids else ():
        add(title, *grid)
    return list(plans.items())


def _grids(mesh: MeshShape, axes: Sequence[str]) -> Iterator[tuple[str, tuple[StrategyMove, ...]]]:
    """Tensor parallelism in two and three dims, on every choice of axes."""
    for r, c in itertools.permutations(map(mesh.axes, axes), 2):
        title = f"SUMMA({mesh.label(r)},{mesh.label(c)})"
        yield title, (DataParallel(r), OutputParallel(c), Zero(r, 3))
    for i, j, k in itertools.permutations(map(mesh.axes, axes), 3):
        title = f"3D({','.join(map(mesh.label, (i, j, k)))})"
        scatters = SequenceParallel(k), SequenceParallel(j)
        yield title, (DataParallel(i), AlternateParallel(k, j), *scatters, Zero(i, 3))


def _choices(mesh: MeshShape, axes: Sequence[str]) -> list[Axes]:
    """Sets of axes for one strategy: any of the user's axes, or minor sub-axes of one."""
    found = [
        tuple(a for name in names for a in mesh.axes(name))
        for n in range(1, len(axes) + 1)
        for names in itertools.combinations(axes, n)
    ]
    for name in axes:
        sub_axes = mesh.axes(name)
        found += [sub_axes[k:] for k in range(1, len(sub_axes))]
    return found
