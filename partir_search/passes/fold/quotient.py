"""Quotient of a module: the module without dropped copies of ops."""

from __future__ import annotations

import dataclasses
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from partir_search.ir.core import Module, Op, Operand, Region, Value
from partir_search.ir.rule import NONE
from partir_search.passes.fold.linear import KeptOps
from partir_search.passes.rewriter import Rewriter


def make_quotient(
    module: Module,
    body: KeptOps,
    count_of: Mapping[int, int],
    roots: Sequence[int],
) -> tuple[Module, array[int], tuple[tuple[int, ...], ...]]:
    """Builds the quotient of a module.

    Args:
      body: ops kept from the module's body, and from opened regions.
      count_of: by id of a kept op, the number of ops that it represents.
      roots: by value id, the id of one value of its class. Arguments of the module in one class
        become one; an opened region keeps one argument for each value of the class.

    Returns:
      the quotient; by value of the module, the id of its quotient value; groups of quotient values
      in one class.
    """
    rewriter = _Quotient(module, body, count_of, roots)
    args, body_ops, all_results, constants = rewriter.rewritten_module()
    first = {v.id: i for i, v in reversed(list(enumerate(args)))}
    result_index: dict[int, int] = {}  # by `id` of a distinct result, its index
    results: list[Operand] = []
    renumbered: list[int] = []
    for x in all_results:
        if id(x) not in result_index:
            result_index[id(x)] = len(results)
            results.append(x)
        renumbered.append(result_index[id(x)])
    ties = dict.fromkeys((first[args[a].id], renumbered[r]) for a, r in module.ties)
    unique = list(dict.fromkeys(first[v.id] for v in args))
    renumber = {old: new for new, old in enumerate(unique)}
    arg_index = [renumber[first[v.id]] for v in args]
    alike = [(arg_index[a], arg_index[b]) for a, b in module.alike]
    quotient = Module(
        name=module.name,
        body=Region(tuple(args[i] for i in unique), body_ops, tuple(results)),
        values=rewriter.new_values,
        ops=rewriter.new_ops,
        constants=constants,
        arg_paths=tuple(module.arg_paths[i] for i in unique),
        result_paths=tuple(module.result_paths[renumbered.index(r)] for r in range(len(results))),
        ties=tuple((renumber[a], r) for a, r in ties),
        alike=tuple(dict.fromkeys(p for p in alike if p[0] != p[1])),
        donated=frozenset(renumber[first[args[i].id]] for i in module.donated),
    )
    return quotient, rewriter.class_of(), rewriter.alike()


class _Quotient(Rewriter):
    """Copy of a module with kept ops only, and one value for each class.

    Ids are assigned in program order as values and ops are made. Ops whose results are unused are
    kept: the results of the ops they represent may be used.

    Attributes:
      new_values: values of the quotient, by id.
      new_ops: ops of the quotient, by id.
    """

    def __init__(
        self, module: Module, body: KeptOps, count_of: Mapping[int, int], roots: Sequence[int]
    ) -> None:
        super().__init__(module)
        self.count_of, self.roots = count_of, roots
        self.image = _images(module, body, roots)
        self.opened: dict[Region, KeptOps] = {module.body: body}
        self.kept: dict[int, Value] = {}  # by id of the representative
        self.new_values: list[Value] = []
        self.new_ops: list[Op] = []
        self.classes: dict[int, list[int]] = {}  # by root, ids of the quotient's values
        self._count = 1  # number of ops represented by the op being copied

    def rewritten_module(
        self,
    ) -> tuple[list[Value], tuple[Op, ...], list[Operand], dict[int, Any]]:
        """Returns the arguments, ops, results and constants; duplicates are not removed."""
        module = self.module
        args = [self.value(v) for v in module.body.args]
        constants = {self.value(module.values[i]).id: a for i, a in module.constants.items()}
        ops = tuple(self.ops(module.body))
        return args, ops, [self.operand(x) for x in module.body.results], constants

    def value(self, old: Value) -> Value:
        kept = self.image[old.id]
        found = self.kept.get(kept)
        if found is None:
            source = self.module.values[kept]
            found = self.kept[kept] = Value(len(self.new_values), source.type, source.name)
            self.classes.setdefault(self.roots[kept], []).append(found.id)
            self.new_values.append(found)
        return found

    def ops(self, old: Region) -> list[Op]:
        places = self.opened.get(old)
        if places is None:
            return [self.op(op) for op in old.ops]
        found = []
        for at in places.positions:
            op = old.ops[at]
            self.opened.update(zip(op.regions, places.opened.get(at, ()), strict=False))
            self._count = self.count_of[op.id]
            found.append(self.op(op))
        return found

    def op(self, old: Op) -> Op:
        new = dataclasses.replace(old, id=len(self.new_ops), count=self._count)
        self.new_ops.append(new)
        new.operands, new.regions, new.results = self.rewritten(old)
        return new

    def class_of(self) -> array[int]:
        """Returns the quotient value of each value of the module; NONE for values without one."""
        new = self.kept
        return array("i", [new[i].id if i in new else NONE for i in self.image])

    def alike(self) -> tuple[tuple[int, ...], ...]:
        """Returns groups of quotient values in one class."""
        return tuple(tuple(c) for c in self.classes.values() if len(c) > 1)


def _images(module: Module, body: KeptOps, roots: Sequence[int]) -> array[int]:
    """Returns, by value id, its representative: the same result of the representative op."""
    image = array("i", roots)

    def pair(kept: Op, old: Op) -> None:
        for x, y in zip(kept.results, old.results, strict=True):
            image[y.id] = x.id
        for r, s in zip(kept.regions, old.regions, strict=True):
            for x, y in zip(r.args, s.args, strict=True):
                image[y.id] = x.id
            for p, q in zip(r.ops, s.ops, strict=True):
                pair(p, q)

    def visit(region: Region, places: KeptOps) -> None:
        for at, (q, old) in enumerate(zip(places.op_of, region.ops, strict=True)):
            if at in places.opened:  # arguments and results are represented by class (`roots`)
                for inner, kept in zip(old.regions, places.opened[at], strict=True):
                    visit(inner, kept)
            else:
                pair(region.ops[places.positions[q]], old)

    visit(module.body, body)
    return image
