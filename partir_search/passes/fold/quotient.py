"""The module that is left when copies of ops are dropped."""

from __future__ import annotations

import dataclasses
from array import array
from collections.abc import Mapping, Sequence

from partir_search.ir.core import Module, Op, Operand, Region, Value
from partir_search.passes.fold.linear import Places


def make_quotient(
    module: Module,
    body: Places,
    count_of: Mapping[int, int],
    roots: Sequence[int],
) -> tuple[Module, array[int], tuple[tuple[int, ...], ...]]:
    """Keeps the chosen ops of a module.

    Args:
      body: ops that are kept of the module's body, and of regions that were opened.
      count_of: number of ops that each kept op stands for, by id.
      roots: per value id, the id of one value in its class. Arguments of one class become one; a
        region that was opened has one as an argument as often as there are values in the class.

    Returns:
      the quotient; its value per value of the module; values of one class that it has twice.
    """
    image = _images(module, body, roots)
    values: list[Value] = []
    ops: list[Op] = []
    fresh: dict[int, Value] = {}
    classes: dict[int, list[int]] = {}

    def value(old: Value) -> Value:
        kept = image[old.id]
        if kept not in fresh:
            source = module.values[kept]
            fresh[kept] = Value(len(values), source.type, source.name)
            classes.setdefault(roots[kept], []).append(len(values))
            values.append(fresh[kept])
        return fresh[kept]

    def operand(old: Operand) -> Operand:
        return value(old) if isinstance(old, Value) else old

    def copy_op(old: Op, count: int, inner: Sequence[Places | None]) -> Op:
        new = dataclasses.replace(old, id=len(ops), count=count)
        ops.append(new)
        new.operands = tuple(operand(x) for x in old.operands)
        pairs = zip(old.regions, inner or [None] * len(old.regions), strict=True)
        new.regions = tuple(copy_region(r, count, places) for r, places in pairs)
        new.results = tuple(value(x) for x in old.results)
        return new

    def copy_region(old: Region, count: int, places: Places | None) -> Region:
        args = tuple(value(x) for x in old.args)
        if places is None:
            inner = tuple(copy_op(o, count, ()) for o in old.ops)
        else:
            inner = kept_ops(old, places)
        return Region(args, inner, tuple(operand(x) for x in old.results))

    def kept_ops(old: Region, places: Places) -> tuple[Op, ...]:
        kept = [(old.ops[at], places.opened.get(at, ())) for at in places.positions]
        return tuple(copy_op(op, count_of[op.id], inner) for op, inner in kept)

    args = [value(v) for v in module.body.args]
    constants = {value(module.values[i]).id: a for i, a in module.constants.items()}
    body_ops = kept_ops(module.body, body)
    all_results = [operand(x) for x in module.body.results]
    first = {v.id: i for i, v in reversed(list(enumerate(args)))}
    place: dict[int, int] = {}  # of each distinct result
    results: list[Operand] = []
    renumbered: list[int] = []
    for x in all_results:
        if id(x) not in place:
            place[id(x)] = len(results)
            results.append(x)
        renumbered.append(place[id(x)])
    ties = dict.fromkeys((first[args[a].id], renumbered[r]) for a, r in module.ties)
    unique = list(dict.fromkeys(first[v.id] for v in args))
    renumber = {old: new for new, old in enumerate(unique)}
    at = [renumber[first[v.id]] for v in args]
    alike = [(at[a], at[b]) for a, b in module.alike]
    quotient = Module(
        name=module.name,
        body=Region(tuple(args[i] for i in unique), body_ops, tuple(results)),
        values=values,
        ops=ops,
        constants=constants,
        arg_paths=tuple(module.arg_paths[i] for i in unique),
        result_paths=tuple(module.result_paths[renumbered.index(r)] for r in range(len(results))),
        ties=tuple((renumber[a], r) for a, r in ties),
        alike=tuple(dict.fromkeys(p for p in alike if p[0] != p[1])),
        donated=frozenset(renumber[first[args[i].id]] for i in module.donated),
    )
    class_of = array("i", [fresh[i].id if i in fresh else -1 for i in image])
    return quotient, class_of, tuple(tuple(c) for c in classes.values() if len(c) > 1)


def _images(module: Module, body: Places, roots: Sequence[int]) -> array[int]:
    """Per value, the one that stands for it: the same result of the op that stands for its op."""
    image = array("i", roots)

    def pair(kept: Op, old: Op) -> None:
        for x, y in zip(kept.results, old.results, strict=True):
            image[y.id] = x.id
        for r, s in zip(kept.regions, old.regions, strict=True):
            for x, y in zip(r.args, s.args, strict=True):
                image[y.id] = x.id
            for p, q in zip(r.ops, s.ops, strict=True):
                pair(p, q)

    def visit(region: Region, places: Places) -> None:
        for at, (q, old) in enumerate(zip(places.op_of, region.ops, strict=True)):
            if at in places.opened:  # its arguments and results: one of each class
                for inner, kept in zip(old.regions, places.opened[at], strict=True):
                    visit(inner, kept)
            else:
                pair(region.ops[places.positions[q]], old)

    visit(module.body, body)
    return image
