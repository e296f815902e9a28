"""Rewrite of a module with some dims padded, for meshes not dividing the dims.

Values are padded on entering a padded class and cut on leaving the class. Elements beyond the
original end of a dim never reach a result: before an op reduces along the dim, each is replaced by
the identity of the reduction (0 for sums, the least number for maxima ...). Selects replace
elements, not products, as products would spread infinities.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from partir_search.ir.core import Literal, Module, Op, Operand, Region, Shape, Value
from partir_search.ir.reducers import identity
from partir_search.ir.rule import NONE, OpRule
from partir_search.passes.fresh_names import FreshNames
from partir_search.passes.pad_choice import DimClasses, Pad
from partir_search.passes.rewriter import Rewriter
from partir_search.rules.construct import (
    NewOp,
    broadcast,
    index_grid,
    less,
    padded,
    selected,
    sliced,
    zero,
)


def pad_module(module: Module, rules: Sequence[OpRule], pads: Sequence[Pad]) -> Module:
    """Returns the module with the dims of `pads` padded; arguments and results keep their shapes.

    Values keep their names, for actions on one program to apply to both.

    Raises:
      ValueError: a pad names no dim of this program.
    """
    classes = DimClasses(module, rules)
    names = module.value_names()
    for pad in pads:
        value = names.get(pad.value)
        if value is None or not 0 <= pad.dim < len(value.type.shape):
            raise ValueError(f"there is no dim {pad.dim} of a value {pad.value!r} to pad")
        classes.padded[classes.of(value, pad.dim)] = pad.size
    return _Rewriter(module, rules, classes).run()


class _Scope:
    """Ops written for one region, and the shapes in which each value is available.

    Attributes:
      forms: by value id and shape, the value padded or cut to the shape.
      masks: by value name, dim and monoid, the masked value.
    """

    def __init__(self, owner: _Rewriter) -> None:
        self.owner = owner
        self.ops: list[Op] = []
        self.forms: dict[tuple[int, Shape], Value] = {}
        self.masks: dict[tuple[str, int, str], Value] = {}

    def read(self, x: Operand, shape: Shape, op: Op) -> Operand:
        """Returns `x` padded or cut to `shape`, for `op`."""
        if not isinstance(x, Value):
            return x
        natural = self.owner.value(x)
        if shape == natural.type.shape:
            return natural
        key = (x.id, shape)
        if key not in self.forms:
            have = natural.type.shape
            value = natural
            kept = tuple(map(min, have, shape))
            if kept != have:
                value = self._add(op, sliced(value, (0,) * len(kept), kept), f"{x.name}_cut")
            if kept != shape:
                config = [(0, m - n, 0) for n, m in zip(kept, shape, strict=True)]
                new = padded(value, zero(x.type), config)
                value = self._add(op, new, f"{x.name}_padded")
            self.forms[key] = value
        return self.forms[key]

    def masked(self, value: Value, n: int, dim: int, monoid: str, op: Op) -> Value:
        """Returns `value` with the identity of `monoid` from element `n` on along `dim`."""
        key = (value.name, dim, monoid)
        if key not in self.masks:
            kind, stem = value.type, value.name
            at = self._add(op, index_grid(kind.shape, dim), f"{stem}_index")
            inside = self._add(op, less(at, n), f"{stem}_inside")
            filler = Literal(identity(monoid, kind.dtype), dataclasses.replace(kind, shape=()))
            fill = self._add(op, broadcast(filler, kind.shape, ()), f"{stem}_fill")
            self.masks[key] = self._add(op, selected(inside, value, fill), f"{stem}_masked")
        return self.masks[key]

    def _add(self, op: Op, new: NewOp, name: str) -> Value:
        result = Value(-1, new.type, self.owner.fresh(name))
        self.ops.append(new.at(op, result))
        return result


class _Rewriter(Rewriter):
    """Pads the dims of the classes in `classes.padded`."""

    def __init__(self, module: Module, rules: Sequence[OpRule], classes: DimClasses) -> None:
        super().__init__(module)
        self.rules, self.classes = rules, classes
        self.fresh = FreshNames(module)

    def zeros_beyond(self, x: Operand, dim: int) -> bool:
        """True if the padded form of `x` is made here, by padding with zeros, and not by an op."""
        return isinstance(x, Value) and self.value(x).type.shape[dim] == x.type.shape[dim]

    def make(self, old: Value, shape: Shape) -> Value:
        """Returns a new value in place of `old`, with the given shape."""
        kind = dataclasses.replace(old.type, shape=shape)
        self.new[old] = new = Value(-1, kind, old.name)
        return new

    def region(self, old: Region) -> Region:
        return self.padded(old, [x.type.shape for x in old.results])

    def padded(self, old: Region, shapes: Sequence[Shape]) -> Region:
        """Returns the region in place of `old`, with results of these shapes."""
        args = tuple(map(self.value, old.args))
        scope = _Scope(self)
        for op in old.ops:
            if op.regions:
                self.region_op(op, scope)
            else:
                self.plain_op(op, scope)
        last = old.ops[-1] if old.ops else None
        results = tuple(
            scope.read(x, shape, last) if last else self.operand(x)
            for x, shape in zip(old.results, shapes, strict=True)
        )
        return Region(args, tuple(scope.ops), results)

    def plain_op(self, op: Op, scope: _Scope) -> None:
        """Writes an op without regions: reads, masks, and params for the padded shapes."""
        rule, classes = self.rules[op.id], self.classes

        ins: list[Operand] = []
        shapes = [
            tuple(classes.read_size(op, i, d) for d in range(len(x.type.shape)))
            if rule.operands[i]
            else x.type.shape
            for i, x in enumerate(op.operands)
        ]
        for i, (x, dims, wanted) in enumerate(zip(op.operands, rule.operands, shapes, strict=True)):
            new = scope.read(x, wanted, op)
            for d, f in enumerate(dims):
                if f == NONE or f in rule.indexed or wanted[d] == x.type.shape[d]:
                    continue
                monoid = self.filler(rule, i, d)
                if monoid and not (monoid == "sum" and self.zeros_beyond(x, d)):
                    assert isinstance(new, Value)
                    new = scope.masked(new, x.type.shape[d], d, monoid, op)
            ins.append(new)
        made = [
            tuple(
                classes.size(r, d) if classes.carries(op, f) else r.type.shape[d]
                for d, f in enumerate(dims)
            )
            for r, dims in zip(op.results, rule.results, strict=True)
        ]
        results = tuple(self.make(r, s) for r, s in zip(op.results, made, strict=True))
        before = [*(x.type.shape for x in op.operands), *(r.type.shape for r in op.results)]
        changed = [*shapes, *made] != before
        new_op = dataclasses.replace(op, operands=tuple(ins), key=None)
        if changed and rule.resizing is not None:
            resized = rule.resizing.resize(op, shapes, made)
            kept = tuple(ins) + resized.operands[len(ins) :]
            new_op = dataclasses.replace(resized, operands=kept, key=None)
        elif changed and rule.localize is not None:
            params = rule.localize(dict(op.params), shapes, made)
            new_op = dataclasses.replace(new_op, params=params)
        if rule.indexed and shapes[0] != op.operands[0].type.shape:
            bounds = {"bounds": op.operands[0].type.shape}
            new_op = dataclasses.replace(new_op, params={**new_op.params, **bounds})
        scope.ops.append(dataclasses.replace(new_op, results=results))

    @staticmethod
    def filler(rule: OpRule, operand: int, dim: int) -> str:
        """Returns the monoid whose identity must fill an operand's dim at its end, or ""."""
        if rule.window_on(operand, dim) is None:
            return rule.reducers[rule.operands[operand][dim]]
        how = rule.resizing
        return how.filler if how and (operand, dim) in how.masked else ""

    def region_op(self, op: Op, scope: _Scope) -> None:
        """Writes an op with regions, with operands, arguments and results padded alike."""
        edges = self.rules[op.id].data_flow
        inputs = {i: stacked for i, _, _, stacked in edges.inputs}
        outputs = {out: stacked for _, _, out, stacked in edges.outputs}

        def shape(x: Operand, stacked: int | None = 0) -> Shape:
            """Padded by class, but for stacked dims and operands read by no region."""
            if not isinstance(x, Value) or stacked is None:
                return x.type.shape
            size = self.classes.size
            return (
                *x.type.shape[:stacked],
                *(size(x, d) for d in range(stacked, len(x.type.shape))),
            )

        ins = tuple(scope.read(x, shape(x, inputs.get(i)), op) for i, x in enumerate(op.operands))
        regions = []
        for region in op.regions:
            for a in region.args:
                self.make(a, shape(a))
            regions.append(self.padded(region, [shape(x) for x in region.results]))
        results = tuple(self.make(r, shape(r, outputs.get(i, 0))) for i, r in enumerate(op.results))
        scope.ops.append(
            dataclasses.replace(op, operands=ins, results=results, regions=tuple(regions), key=None)
        )
