"""Reconciliation of fixed shardings with one tiling per class and one order of axes.

Propagation has one tiling for an argument, the result replacing it and a constraint right before
the return, and a program has one order of axes. Conflicting shardings of arguments and results are
moved to the boundary of the program: `Enter` and `Leave` actions, with a reshard.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence

from partir_search.constraints.fixed_layouts import FixedLayout, layout_actions
from partir_search.ir.analysis.def_use import def_use
from partir_search.ir.analysis.union_find import UnionFind
from partir_search.ir.axis_options import Modes
from partir_search.ir.core import Module, Value
from partir_search.ir.mesh import MeshShape
from partir_search.ir.partition import Layout
from partir_search.ir.rule import REPLICATED
from partir_search.propagation.actions import Action, End, Enter, Leave

OptionalLayouts = Sequence["FixedLayout | None"]


def reconcile(
    module: Module,
    mesh: MeshShape,
    args: OptionalLayouts,
    results: OptionalLayouts,
    inside: Sequence[FixedLayout],
) -> list[Action]:
    """Actions for fixed layouts with possible conflicts.

    Args:
      mesh: mesh of the layouts.
      args, results: [arguments], [results] layout or None; missing entries at the end are None.
      inside: layouts of results of ops (sharding constraints).
    """
    given = [*args, *[None] * (len(module.body.args) - len(args))]
    wanted = [*results, *[None] * (len(module.body.results) - len(results))]
    found = _Reconciliation(module, mesh, given, wanted, {w.value: w for w in inside})
    order = _order(module, mesh, [*given, *wanted], inside)
    layouts = [dataclasses.replace(w, layout=_ordered(w.layout, order)) for w in found.kept]
    return [*layout_actions(layouts, mesh), *found.ends(order)]


def without_ties(module: Module, actions: Sequence[Action]) -> Module:
    """The module without ties of the results named by `Leave` actions."""
    own = {a.result for a in actions if isinstance(a, Leave)}
    if own.isdisjoint(r for _, r in module.ties):
        return module
    ties = tuple((a, r) for a, r in module.ties if r not in own)
    return dataclasses.replace(module, ties=ties)


class _Reconciliation:
    """Layouts for propagation, and layouts for the boundary of the program.

    Arguments come first, then constraints, then results: of two conflicting layouts of one class
    the first is kept for propagation.

    Attributes:
      kept: layouts for propagation, without conflicts.
    """

    def __init__(
        self,
        module: Module,
        mesh: MeshShape,
        args: list[FixedLayout | None],
        results: list[FixedLayout | None],
        inside: dict[str, FixedLayout],
    ) -> None:
        self.module, self.mesh = module, mesh
        self.args, self.results = args, results
        self._numbers = {v.name: i for i, v in enumerate(module.body.args)}
        self.kept: list[FixedLayout] = []
        self._tiled_alike = UnionFind(len(module.values))
        self._first: dict[int, FixedLayout] = {}  # kept layout by root of the class
        self._enters: set[int] = set()
        self._leaves: dict[int, FixedLayout] = {}
        for a, b in module.alike:
            self._tiled_alike.merge(module.body.args[a].id, module.body.args[b].id)
        self._tied: dict[int, int] = {}  # argument of equal tiling, by result
        for a, r in module.ties:
            self._tie(a, r, inside)
        for i, fixed in enumerate(args):
            if fixed is not None and not self._try_keep(fixed):
                self._enters.add(i)
        for fixed in inside.values():
            self._try_keep(fixed)
        for r, fixed in enumerate(results):
            if fixed is not None and r not in self._leaves and not self._try_keep(fixed):
                self._leaves[r] = fixed

    def ends(self, order: Modes) -> list[End]:
        """`Enter` and `Leave` actions of arguments and results with a separate boundary layout.

        Args:
          order: order of axes in the program.
        """
        found: list[End] = []
        own: dict[int, Layout] = {}
        for i, fixed in enumerate(self.args):
            if fixed and (i in self._enters or _ordered(fixed.layout, order) != fixed.layout):
                own[i] = fixed.layout
                found.append(Enter(i, self._labels(fixed.layout)))
        for r, fixed in enumerate(self.results):
            if r in self._leaves:
                found.append(Leave(r, self._labels(self._leaves[r].layout)))
            elif fixed:
                value_layout = _ordered(fixed.layout, order)
                tied = self._tied.get(r)
                returned = value_layout if tied is None else own.get(tied, value_layout)
                if returned != fixed.layout:
                    found.append(Leave(r, self._labels(fixed.layout)))
        return found

    def _tie(self, arg: int, result: int, inside: dict[str, FixedLayout]) -> None:
        """Ties a result to its argument, or gives the result a separate layout in a conflict.

        Without a layout of the result, it leaves in the layout of the argument; without a layout of
        the argument, the layout of the result holds for both.
        """
        value = self.module.body.results[result]
        argument = self.module.body.args[arg]
        if not isinstance(value, Value) or value.type.shape != argument.type.shape:
            return
        argument_layout, result_layout = self.args[arg], self.results[result]
        if argument_layout is None and result_layout is not None:
            argument_layout = self.args[arg] = dataclasses.replace(
                result_layout, value=argument.name
            )
        source = self._numbers.get(value.name)
        own = None if source is None else self.args[source]
        constraint = inside.get(value.name, own)
        wanted = result_layout or argument_layout
        given = [w for w in (argument_layout, result_layout, constraint) if w is not None]
        if all(self._agree(w, v) for w in given for v in given):
            self._tiled_alike.merge(argument.id, value.id)
            self._tied[result] = arg
        elif wanted is not None:
            self._leaves[result] = wanted

    def _try_keep(self, fixed: FixedLayout) -> bool:
        """Keeps a layout for propagation; False if it conflicts with a kept one."""
        root = self._tiled_alike.find(self.module.value_names()[fixed.value].id)
        first = self._first.setdefault(root, fixed)
        if not self._agree(first, fixed):
            return False
        self.kept.append(fixed)
        return True

    def _agree(self, one: FixedLayout, other: FixedLayout) -> bool:
        """True if one tiling satisfies both layouts, up to the order of axes."""
        for axis in range(len(self.mesh.names)):
            dims = [_dim(fixed, axis) for fixed in (one, other)]
            if None not in dims and dims[0] != dims[1]:
                return False
            for dim, fixed in zip(dims, (other, one), strict=True):
                if dim is not None and (dim, axis) in fixed.closed:
                    return False
        return True

    def _labels(self, layout: Layout) -> tuple[str, ...]:
        return tuple(self.mesh.label(axes) for axes in layout)


def _dim(fixed: FixedLayout, axis: int) -> int | None:
    """Dim tiled on an axis, REPLICATED, or None if the layout leaves the axis free."""
    for dim, axes in enumerate(fixed.layout):
        if axis in axes:
            return dim
    return REPLICATED if axis in fixed.replicated else None


def _order(
    module: Module, mesh: MeshShape, ends: OptionalLayouts, inside: Sequence[FixedLayout]
) -> Modes:
    """Order of axes for the program: pairs of axes by the bytes of values asking for the order.

    Arguments, results and constraints next to the user's own `shard_map` count with their bytes,
    since their tiles must be exact; a constraint elsewhere holds in any order of axes and breaks
    ties only.
    """
    weight: collections.Counter[tuple[int, ...]] = collections.Counter()
    several = [w for w in inside if any(len(axes) > 1 for axes in w.layout)]
    exact_names = _near_shard_maps(module) if several else set()
    exact = [w for w in ends if w is not None] + [w for w in several if w.value in exact_names]
    values = module.value_names()
    for fixed in exact:
        for axes in fixed.layout:
            weight[axes] += values[fixed.value].type.nbytes
    for fixed in several:
        weight.update(axes for axes in fixed.layout)
    order = Modes()
    for axes in sorted(weight, key=lambda axes: -weight[axes]):
        pairs = {(a, b) for i, a in enumerate(axes) for b in axes[i + 1 :]}
        more = dataclasses.replace(order, axis_orders=order.axis_orders | pairs)
        try:
            more.ordered(range(len(mesh.names)))
        except ValueError:
            continue
        order = more
    return order


def _near_shard_maps(module: Module) -> set[str]:
    """Names of operands and results of the user's `shard_map`s, and of their users' results."""
    found = set[str]()
    for op in module.ops:
        if "manual" in op.params:
            found.update(v.name for _, v in op.inputs())
            made = {v.name for v in op.results}
            users = (u for v in op.results for u in def_use(module).users[v.id])
            found.update(made, *({r.name for r in u.results} for u in users))
    return found


def _ordered(layout: Layout, order: Modes) -> Layout:
    return tuple(tuple(order.ordered(sorted(axes))) for axes in layout)
