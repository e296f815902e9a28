"""Writes a module in which dims that are read shifted are read so by one op each.

A roll is slices and a concatenation to jax, a periodic stencil reads slices of an array padded by
concatenations, an update of the interior is a scatter at a constant place. All of these are index
maps of one value. Here each is written as one op on that value whose tiles lie where the value's
tiles lie, so that only what crosses their edges moves.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from partir_search.ir.boundaries import ZERO
from partir_search.ir.core import Literal, Module, Op, Operand, Region, Value, walk_regions
from partir_search.ir.role import Role
from partir_search.passes.rewriter import Rewriter
from partir_search.passes.views.along import looked_up
from partir_search.passes.views.constants import Constants
from partir_search.passes.views.convolutions import around, unwrapped
from partir_search.passes.views.crops import WINDOWED, Crops
from partir_search.passes.views.indexed import indexed
from partir_search.passes.views.joins import join
from partir_search.passes.views.known import Known
from partir_search.passes.views.resize import resized
from partir_search.passes.views.scattered import scattered
from partir_search.passes.views.sums import MOST, Sums
from partir_search.passes.views.updates import as_slice, update
from partir_search.passes.views.view import (
    FOLLOWED,
    View,
    filled,
    repeated,
    view_of,
    whole,
    zero_filled,
    zeros_only,
)
from partir_search.passes.views.write import Names, Writer
from partir_search.rules.registry import role_of

MOVES = frozenset(
    {
        *(Role.CONCATENATION, Role.PADDING, Role.SLICE, Role.GATHER, Role.SCATTER),
        *(Role.DYNAMIC_SLICE, Role.DYNAMIC_UPDATE),
    }
)
LOOKED_AT = MOVES | {Role.DOT}
_OWN_VIEWS = (Role.SLICE, Role.PADDING, Role.REVERSAL, Role.BROADCAST)


def with_views(module: Module) -> Module:
    """The module with its shifted reads as ops of their own; itself if it has none.

    The new module takes over the old one's values: use the old one no more.
    """
    if not any(role_of(op) in LOOKED_AT for op in module.ops):
        return module
    constants = {module.values[i]: array for i, array in module.constants.items()}
    return _Rewriter(module, Constants(constants)).run()


class _Rewriter(Rewriter):
    """Rewrites regions, each by itself: values that enter one are read there as they come.

    Attributes:
      arrays: values with their arrays that rewritten ops read besides.
      known: arrays that enter regions.
    """

    def __init__(self, module: Module, read: Constants) -> None:
        super().__init__(module)
        self.names, self.read = Names({v.name for v in module.values}), read
        self.arrays: dict[int, tuple[Value, Any]] = {}
        arrays = module.constants.items()
        self.known: dict[Value, Callable[[], Any]] = {
            module.values[i]: partial(np.asarray, array) for i, array in arrays
        }

    def value(self, old: Value) -> Value:
        return old

    def constants(self) -> Mapping[int, tuple[Value, Any]]:
        return {**super().constants(), **self.arrays}

    def region(self, old: Region) -> Region:
        roles = (role_of(op) for r in walk_regions(old) for op in r.ops)
        if LOOKED_AT.isdisjoint(roles):
            return old
        return _Scope(self, old).run()


class _Scope:
    """One region as it is rewritten.

    Attributes:
      views: values that are views of others.
      sums: values that are sums of views.
      instead: operand to read instead of a value.
      makers: the op that makes a value.
      crops: values of which only slices are read.
    """

    def __init__(self, owner: _Rewriter, region: Region) -> None:
        self.owner, self.old = owner, region
        self.writer = Writer(owner.names)
        self.views: dict[Value, View] = {}
        self.instead: dict[Value, Operand] = {}
        self.makers: dict[Value, Op] = {}
        self.known = Known(region, owner.known)
        self.crops = Crops(self.makers, region)
        self.sums = Sums(self.crops)

    def run(self) -> Region:
        for op in self.old.ops:
            self.visit(op)
        results = tuple(self.read(x) for x in self.old.results)
        return Region(self.old.args, tuple(self.writer.ops), results)

    def read(self, x: Operand) -> Operand:
        return self.instead.get(x, x) if isinstance(x, Value) else x

    def look(self, x: Operand) -> View | None:
        """An operand as a view, at least of itself."""
        if not isinstance(x, Value):
            return None
        if 0 in x.type.shape:
            return filled(x.type.shape, None)
        return self.views.get(x) or whole(x)

    def visit(self, op: Op) -> None:
        if self.instead:
            operands = tuple([self.read(x) for x in op.operands])
            if operands != op.operands:
                op = dataclasses.replace(op, operands=operands, key=None)
        if op.regions:
            self.owner.read.enter(op)
            self.owner.known.update(self.known.entering(op))
            regions = tuple(map(self.owner.region, op.regions))
            self.writer.ops.append(dataclasses.replace(op, regions=regions))
            return
        constants = self.owner.read
        constants.follow(op)
        if not self.matters(op):
            self.writer.ops.append(op)
            return
        if role_of(op) is Role.PADDING:
            op = dataclasses.replace(
                op, operands=(op.operands[0], constants.literal(op.operands[1]))
            )
        if resized(self.writer, op, self.known, self.owner.arrays):
            return
        if self.at_places(op):
            return
        self.makers[op.results[0]] = op = around(op, self.views) or op
        op = as_slice(op, constants) or repeated(op, self.makers) or op
        if not (self.rewritten(op) or update(self.writer, op, constants, self.views)):
            self.writer.ops.append(op)

    def at_places(self, op: Op) -> bool:
        """Writes a gather or a scatter at places that are known."""
        found = indexed(op, self.known)
        x = op.operands[0]
        if found is None or not isinstance(x, Value):
            return False
        view = self.views.get(x) or whole(x)
        if role_of(op) is Role.GATHER:
            return looked_up(self.writer, op, found, view)
        zeros = view.base is None and zero_filled(view)
        return scattered(self.writer, op, found, zeros=zeros)

    def matters(self, op: Op) -> bool:
        """True if the op may be a view, or read one: of most it is known by their role."""
        role = role_of(op)
        if role is Role.ADDITION:
            return any(
                isinstance(x, Value) and (x in self.views or self.sums.of(x)) for x in op.operands
            )
        if role is Role.DOT:
            return any(len(x.type.shape) == 2 for x in op.operands)
        return role in FOLLOWED or role in MOVES or role in WINDOWED

    def rewritten(self, op: Op) -> bool:
        """Writes the op as a view, a sum of views, or a join, if it is one and near enough."""
        if self.sums.read(op) and self.sums.write(self.writer, op):
            return True
        view = view_of(op, self.look)
        if view is None:
            return self.summed(op) or join(self.writer, op, self.look)
        (result,) = op.results
        self.views[result] = view
        if view.base is None:
            return False
        if self.crops.of(view.base) is not None and any(m is not None for m in view.maps):
            return self.crops.write(self.writer, op, view, result) is not None
        if _direct(op, view):
            return False
        if all(m is None for m in view.maps):
            self.instead[result] = view.base
            return True
        forms = view.forms()
        if forms is None:
            return join(self.writer, op, self.look)
        if not all(f.near for f in forms.values()):
            return False
        mixed = any(f.turns and ZERO in (f.below, f.above) for f in forms.values())
        if mixed and not zeros_only(view):
            return False
        if any(f.kept for f in forms.values()) and role_of(op) is Role.SLICE:
            return False  # the pad's own select is there already
        self.writer.view(op, view, result)
        return True

    def summed(self, op: Op) -> bool:
        """Remembers sums of views, the gradients of padding; what adds up to a ring is written."""
        if role_of(op) is not Role.ADDITION or any(isinstance(x, Literal) for x in op.operands):
            return False
        terms = [v for x in op.operands for v in self.terms(x)]
        if any(v.base is None for v in terms) or all(m is None for v in terms for m in v.maps):
            return False
        found = self.sums.add(op, terms)
        if len({v.base for v in terms}) == 1 and unwrapped(self.writer, op, terms):
            self.sums.forget(op.results[0])
            self.makers[op.results[0]] = self.writer.ops[-1]
            return True
        return len(found) <= MOST and self.sums.write(self.writer, op)

    def terms(self, x: Operand) -> Sequence[View]:
        """The views that an operand is the sum of."""
        assert isinstance(x, Value)
        return self.sums.of(x) or [self.views.get(x) or whole(x)]


def _direct(op: Op, view: View) -> bool:
    """Tells whether the op is a view of its own operand already, which no view lies behind."""
    return role_of(op) in _OWN_VIEWS and op.operands[0] is view.base
