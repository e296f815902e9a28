"""Rewrite of a module in which each shifted read of a dim becomes one op.

In jax, a roll is two slices and a concatenation, a periodic stencil reads slices of an array padded
by concatenations, and an update of the interior is a scatter at a constant position. All are index
maps of one value. Each becomes one op on the value, with tiles at the positions of the value's
tiles: only elements that cross tile edges move.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from partir_search.ir.boundaries import ZERO
from partir_search.ir.core import Module, Op, Operand, Region, Value, walk_regions
from partir_search.ir.role import Role
from partir_search.passes.fresh_names import FreshNames
from partir_search.passes.rewriter import Rewriter
from partir_search.passes.views.along import write_gather
from partir_search.passes.views.constant_arrays import ConstantArrays
from partir_search.passes.views.constants import SmallConstants
from partir_search.passes.views.convolutions import absorb_padding, write_periodic_gradient
from partir_search.passes.views.crops import WINDOWED, Crops
from partir_search.passes.views.elementwise import linear_terms, write_elementwise
from partir_search.passes.views.indexed import find_indexed
from partir_search.passes.views.joins import write_concatenation
from partir_search.passes.views.resize import write_resize
from partir_search.passes.views.scattered import write_scatter
from partir_search.passes.views.sums import MAX_TERMS, Sums
from partir_search.passes.views.updates import as_slice, write_update
from partir_search.passes.views.view import (
    VIEW_ROLES,
    View,
    filled,
    identity_view,
    repeat_as_broadcast,
    view_of,
    zero_filled,
    zeros_only,
)
from partir_search.passes.views.write import Writer
from partir_search.rules.registry import role_of

MOVE_ROLES = frozenset(
    {
        *(Role.CONCATENATION, Role.PADDING, Role.SLICE, Role.GATHER, Role.SCATTER),
        *(Role.DYNAMIC_SLICE, Role.DYNAMIC_UPDATE),
    }
)
REWRITTEN_ROLES = MOVE_ROLES | {Role.DOT}
DIRECT_VIEW_ROLES = (Role.SLICE, Role.PADDING, Role.REVERSAL, Role.BROADCAST)


def with_views(module: Module) -> Module:
    """Returns the module with each shifted read as one op; the same module if it has none."""
    if not any(role_of(op) in REWRITTEN_ROLES for op in module.ops):
        return module
    module = Rewriter(module).run()  # the rewrite takes over ops and values
    constants = {module.values[i]: array for i, array in module.constants.items()}
    return _Rewriter(module, SmallConstants(constants)).run()


class _Rewriter(Rewriter):
    """Rewrites each region by itself; values entering a region count as unknown, not as views.

    Attributes:
      names: names of values in use.
      small_constants: small arrays known at planning time.
      arrays: constants added by rewritten ops, with their arrays.
      entering: functions returning constant arrays by value of a region.
    """

    def __init__(self, module: Module, small_constants: SmallConstants) -> None:
        super().__init__(module)
        self.names = FreshNames(module)
        self.small_constants = small_constants
        self.arrays: dict[int, tuple[Value, Any]] = {}
        arrays = module.constants.items()
        self.entering: dict[Value, Callable[[], Any]] = {
            module.values[i]: partial(np.asarray, array) for i, array in arrays
        }

    def value(self, old: Value) -> Value:
        return old

    def constants(self) -> Mapping[int, tuple[Value, Any]]:
        return {**super().constants(), **self.arrays}

    def region(self, old: Region) -> Region:
        roles = (role_of(op) for r in walk_regions(old) for op in r.ops)
        if REWRITTEN_ROLES.isdisjoint(roles):
            return old
        return _Scope(self, old).run()


class _Scope:
    """Rewrite of one region.

    Attributes:
      views: view of each value known as one.
      replacements: operand to read in place of a value.
      makers: op making each value.
      constant_arrays: arrays computed from constants alone.
      crops: values made by windows and read by slices only.
      sums: values known as sums of views.
    """

    def __init__(self, owner: _Rewriter, region: Region) -> None:
        self.owner, self.old = owner, region
        self.writer = Writer(owner.names)
        self.views: dict[Value, View] = {}
        self.replacements: dict[Value, Operand] = {}
        self.makers: dict[Value, Op] = {}
        self.constant_arrays = ConstantArrays(region, owner.entering)
        self.crops = Crops(self.makers, region)
        self.sums = Sums(self.crops, self.makers)

    def run(self) -> Region:
        for op in self.old.ops:
            self.visit(op)
        results = tuple(self.read(x) for x in self.old.results)
        return Region(self.old.args, tuple(self.writer.ops), results)

    def read(self, x: Operand) -> Operand:
        return self.replacements.get(x, x) if isinstance(x, Value) else x

    def as_view(self, x: Operand) -> View | None:
        """Returns an operand as a view, at least of itself; None for a literal."""
        if not isinstance(x, Value):
            return None
        if 0 in x.type.shape:
            return filled(x.type.shape, None)
        return self.views.get(x) or identity_view(x)

    def visit(self, op: Op) -> None:
        if self.replacements:
            operands = tuple([self.read(x) for x in op.operands])
            if operands != op.operands:
                op = dataclasses.replace(op, operands=operands, key=None)
        if op.regions:
            self.owner.small_constants.enter(op)
            self.owner.entering.update(self.constant_arrays.entering(op))
            regions = tuple(map(self.owner.region, op.regions))
            self.writer.ops.append(dataclasses.replace(op, regions=regions))
            return
        constants = self.owner.small_constants
        constants.follow(op)
        if padded := write_elementwise(self.writer, op, self.views):
            self.views[op.results[0]] = padded
            return
        if not self.is_candidate(op):
            if terms := linear_terms(self.writer, op, self.views, self.sums):
                self.sums.record(op.results[0], terms)
            self.writer.ops.append(op)
            return
        if role_of(op) is Role.PADDING:
            op = dataclasses.replace(
                op, operands=(op.operands[0], constants.literal(op.operands[1]))
            )
        if write_resize(self.writer, op, self.constant_arrays, self.owner.arrays):
            return
        if self.write_indexed(op):
            return
        self.makers[op.results[0]] = op = absorb_padding(op, self.views) or op
        op = as_slice(op, constants) or repeat_as_broadcast(op, self.makers) or op
        if not (self.write_view(op) or write_update(self.writer, op, constants, self.views)):
            self.writer.ops.append(op)

    def write_indexed(self, op: Op) -> bool:
        """Writes a gather or scatter at known positions; False if the op is none."""
        found = find_indexed(op, self.constant_arrays)
        x = op.operands[0]
        if found is None or not isinstance(x, Value):
            return False
        view = self.views.get(x) or identity_view(x)
        if role_of(op) is Role.GATHER:
            return write_gather(self.writer, op, found, view)
        zeros = view.base is None and zero_filled(view)
        return write_scatter(self.writer, op, found, zeros=zeros)

    def is_candidate(self, op: Op) -> bool:
        """True if an op may be a view or read one; for most ops the role decides."""
        role = role_of(op)
        if role is None:
            return False
        if role is Role.ADDITION:
            return any(
                isinstance(x, Value) and (x in self.views or self.sums.of(x)) for x in op.operands
            )
        if role is Role.DOT:
            return any(len(x.type.shape) == 2 for x in op.operands)
        return role in VIEW_ROLES or role in MOVE_ROLES or role in WINDOWED

    def write_view(self, op: Op) -> bool:
        """Writes an op as a view, a sum of views or a concatenation; False if the op stays."""
        if self.sums.read(op) and self.sums.write(self.writer, op):
            return True
        view = view_of(op, self.as_view)
        if view is None:
            return self.write_sum(op) or write_concatenation(self.writer, op, self.as_view)
        (result,) = op.results
        self.views[result] = view
        if view.base is None:
            return False
        if self.crops.maker(view.base) is not None and any(m is not None for m in view.maps):
            return self.crops.write(self.writer, op, view, result) is not None
        if _is_direct(op, view):
            return False
        if all(m is None for m in view.maps):
            self.replacements[result] = view.base
            return True
        shifts = view.shifts()
        if shifts is None:
            return write_concatenation(self.writer, op, self.as_view)
        if not all(f.is_local for f in shifts.values()):
            return False
        mixed = any(f.has_boundary and ZERO in (f.below, f.above) for f in shifts.values())
        if mixed and not zeros_only(view):
            return False
        if any(f.kept for f in shifts.values()) and role_of(op) is Role.SLICE:
            return False  # the pad's select is written already
        self.writer.view(op, view, result)
        return True

    def write_sum(self, op: Op) -> bool:
        """Records a sum of views, the gradient of padding; True if it could be written."""
        whole = all(x.type.shape == op.results[0].type.shape for x in op.operands)
        if role_of(op) is not Role.ADDITION or not whole:
            return False
        terms = [v for x in op.operands for v in self.terms(x)]
        if any(v.base is None for v in terms) or all(m is None for v in terms for m in v.maps):
            return False
        found = self.sums.add(op, terms)
        if len({v.base for v in terms}) == 1 and write_periodic_gradient(self.writer, op, terms):
            self.sums.forget(op.results[0])
            self.makers[op.results[0]] = self.writer.ops[-1]
            return True
        return len(found) <= MAX_TERMS and self.sums.write(self.writer, op)

    def terms(self, x: Operand) -> Sequence[View]:
        """Returns the views whose sum is an operand."""
        assert isinstance(x, Value)
        return self.sums.of(x) or [self.views.get(x) or identity_view(x)]


def _is_direct(op: Op, view: View) -> bool:
    """True if the op reads the view's base itself: rewriting would repeat the op."""
    return role_of(op) in DIRECT_VIEW_ROLES and op.operands[0] is view.base
