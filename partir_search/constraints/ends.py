"""Fixed shardings that differ and meet in one value, or in one order of axes.

An argument, the result that replaces it, and what a constraint makes right before it is returned
are one value to propagation, which has one tiling; and a program has one order of axes. What does
not agree with that is kept at the program's ends: an argument enters, or a result leaves, in a
layout of its own, and is redistributed there.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence

from partir_search.constraints.fixed_layouts import Wish, together
from partir_search.ir.analysis.union_find import UnionFind
from partir_search.ir.axis_options import Modes
from partir_search.ir.core import Module, Value
from partir_search.ir.mesh import MeshShape
from partir_search.ir.partition import Layout
from partir_search.propagation.actions import Action, End, Enter, Leave

Wishes = Sequence["Wish | None"]


def meeting(
    module: Module, mesh: MeshShape, args: Wishes, results: Wishes, inside: Sequence[Wish]
) -> list[Action]:
    """Actions for wishes that need not agree.

    Args:
      mesh: whose axes the wishes mean.
      args, results: a wish each, or None; fewer where the last have none.
      inside: of values that ops make.
    """
    given = [*args, *[None] * (len(module.body.args) - len(args))]
    wanted = [*results, *[None] * (len(module.body.results) - len(results))]
    found = _Meeting(module, mesh, given, wanted, {w.value: w for w in inside})
    order = _order(module, mesh, [*given, *wanted], inside)
    wishes = [dataclasses.replace(w, layout=_ordered(w.layout, order)) for w in found.kept]
    return [*together(wishes, mesh), *found.ends(order)]


def untied(module: Module, actions: Sequence[Action]) -> Module:
    """The module without ties of results that leave in a layout of their own."""
    own = {a.result for a in actions if isinstance(a, Leave)}
    if own.isdisjoint(r for _, r in module.ties):
        return module
    ties = tuple((a, r) for a, r in module.ties if r not in own)
    return dataclasses.replace(module, ties=ties)


class _Meeting:
    """Wishes that can be kept together, and the ends at which others are kept.

    Attributes:
      kept: wishes on values, at most one of those that propagation takes for one value.
    """

    def __init__(
        self,
        module: Module,
        mesh: MeshShape,
        args: list[Wish | None],
        results: list[Wish | None],
        inside: dict[str, Wish],
    ) -> None:
        self.module, self.mesh = module, mesh
        self.args, self.results = args, results
        self._numbers = {v.name: i for i, v in enumerate(module.body.args)}
        self.kept: list[Wish] = []
        self._tiled_alike = UnionFind(len(module.values))
        self._first: dict[int, Wish] = {}  # by root, the wish that is kept
        self._enters: set[int] = set()
        self._leaves: dict[int, Wish] = {}
        for a, b in module.alike:
            self._tiled_alike.merge(module.body.args[a].id, module.body.args[b].id)
        self._tied: dict[int, int] = {}  # by result, the argument whose tiling it keeps
        for a, r in module.ties:
            self._tie(a, r, inside)
        for i, wish in enumerate(args):
            if wish is not None and not self._keep(wish):
                self._enters.add(i)
        for wish in inside.values():
            self._keep(wish)
        for r, wish in enumerate(results):
            if wish is not None and r not in self._leaves and not self._keep(wish):
                self._leaves[r] = wish

    def ends(self, order: Modes) -> list[End]:
        """Layouts in which arguments enter and results leave, where these are their own.

        Args:
          order: of the program's axes.
        """
        found: list[End] = []
        own: dict[int, Layout] = {}
        for i, wish in enumerate(self.args):
            if wish and (i in self._enters or _ordered(wish.layout, order) != wish.layout):
                own[i] = wish.layout
                found.append(Enter(i, self._labels(wish.layout)))
        for r, wish in enumerate(self.results):
            if r in self._leaves:
                found.append(Leave(r, self._labels(self._leaves[r].layout)))
            elif wish:
                rests = _ordered(wish.layout, order)
                comes = own.get(self._tied[r], rests) if r in self._tied else rests
                if comes != wish.layout:
                    found.append(Leave(r, self._labels(wish.layout)))
        return found

    def _tie(self, arg: int, result: int, inside: dict[str, Wish]) -> None:
        """Ties new train state to its argument: it leaves as it came, unless its own sharding is
        fixed; a sharding that only the result has fixed holds for the argument, too.
        """
        value = self.module.body.results[result]
        argument = self.module.body.args[arg]
        if not isinstance(value, Value) or value.type.shape != argument.type.shape:
            return
        comes, leaves = self.args[arg], self.results[result]
        if comes is None and leaves is not None:
            comes = self.args[arg] = dataclasses.replace(leaves, value=argument.name)
        passed = self._numbers.get(value.name)
        own = None if passed is None else self.args[passed]
        made = inside.get(value.name, own)
        target = leaves or comes
        given = [w for w in (comes, leaves, made) if w is not None]
        if all(self._agree(w, v) for w in given for v in given):
            self._tiled_alike.merge(argument.id, value.id)
            self._tied[result] = arg
        elif target is not None:
            self._leaves[result] = target

    def _keep(self, wish: Wish) -> bool:
        """Keeps a wish; False if it does not agree with another one on the same value."""
        root = self._tiled_alike.find(self.module.value_names()[wish.value].id)
        first = self._first.setdefault(root, wish)
        if not self._agree(first, wish):
            return False
        self.kept.append(wish)
        return True

    def _agree(self, one: Wish, other: Wish) -> bool:
        """Tells whether one tiling fulfils both, whatever the order of axes."""
        for axis in range(len(self.mesh.names)):
            dims = [_dim(wish, axis) for wish in (one, other)]
            if None not in dims and dims[0] != dims[1]:
                return False
            for dim, wish in zip(dims, (other, one), strict=True):
                if dim is not None and (dim, axis) in wish.bars:
                    return False
        return True

    def _labels(self, layout: Layout) -> tuple[str, ...]:
        return tuple(self.mesh.label(axes) for axes in layout)


WHOLE = -1


def _dim(wish: Wish, axis: int) -> int | None:
    """The dim that a wish tiles on an axis, WHOLE, or None if it leaves that free."""
    for dim, axes in enumerate(wish.layout):
        if axis in axes:
            return dim
    return WHOLE if axis in wish.whole else None


def _order(module: Module, mesh: MeshShape, ends: Wishes, inside: Sequence[Wish]) -> Modes:
    """The order of axes that most bytes want, as far as one program can have it.

    Constraints count where a `shard_map` of the user's own stands, which runs on these very tiles;
    others are kept in any order of axes.
    """
    weight: collections.Counter[tuple[int, ...]] = collections.Counter()
    several = [w for w in inside if any(len(axes) > 1 for axes in w.layout)]
    beside = _beside(module) if several else set()
    exact = [w for w in ends if w is not None] + [w for w in several if w.value in beside]
    values = module.value_names()
    for wish in exact:
        for axes in wish.layout:
            weight[axes] += values[wish.value].type.nbytes
    for wish in several:
        weight.update(axes for axes in wish.layout)
    order = Modes()
    for axes in sorted(weight, key=lambda axes: -weight[axes]):
        pairs = {(a, b) for i, a in enumerate(axes) for b in axes[i + 1 :]}
        more = dataclasses.replace(order, nests=order.nests | pairs)
        try:
            more.nested(range(len(mesh.names)))
        except ValueError:
            continue
        order = more
    return order


def _beside(module: Module) -> set[str]:
    """Names of values that a `shard_map` of the user's own reads or makes, or that follow one."""
    found = set[str]()
    for op in module.ops:
        if "manual" in op.params:
            found.update(v.name for _, v in op.inputs())
            made = {v.name for v in op.results}
            users = (u for v in op.results for u in module.users()[v.id])
            found.update(made, *({r.name for r in u.results} for u in users))
    return found


def _ordered(layout: Layout, order: Modes) -> Layout:
    return tuple(tuple(order.nested(sorted(axes))) for axes in layout)
