"""Verifier of modules and partitions. Errors show the op, the user's source line and nearby ops."""

from __future__ import annotations

from partir_search.ir.core import Literal, Module, Op, Region, Value
from partir_search.ir.partition import Partition
from partir_search.ir.rule import NONE, REPLICATED

WINDOW = 10  # ops shown before and after the faulty one


class InvalidIR(ValueError):
    """IR that breaks an invariant: a defect of this package, not of the user's program."""


def verify(module: Module) -> None:
    """Checks dense ids, distinct names, single definitions before uses, and equal shapes of ties.

    Raises:
      InvalidIR: an invariant is broken.
    """
    for i, value in enumerate(module.values):
        if value.id != i:
            raise InvalidIR(f"value {value!r} has id {value.id} at position {i}")
    if len(module.value_names()) < len(module.values):  # actions find values by name
        named = module.value_names()
        twice = next(v for v in module.values if named[v.name] is not v)
        raise InvalidIR(f"{named[twice.name]!r} has the name of another value")
    for i, op in enumerate(module.ops):
        if op.id != i:
            raise _wrong(module, op, f"has id {op.id} at position {i}")
    defined: set[int] = set(module.constants)
    _region(module, module.body, defined)
    for arg, result in module.ties:
        a, r = module.body.args[arg], module.body.results[result]
        if a.type.shape != r.type.shape:
            raise InvalidIR(f"{module.arg_paths[arg]}: {a.type} is tied to a result {r.type}")


def _region(module: Module, region: Region, outer: set[int]) -> None:
    defined = set(outer)
    for arg in region.args:
        if arg.id in defined:
            raise InvalidIR(f"{arg!r} is defined twice")
        defined.add(arg.id)
    for op in region.ops:
        for _, value in op.inputs():
            if value.id not in defined:
                raise _wrong(module, op, f"uses {value!r} before it is defined")
        for inner in op.regions:
            _region(module, inner, set(module.constants))
        for result in op.results:
            if result.id in defined:
                raise _wrong(module, op, f"defines {result!r} again")
            defined.add(result.id)
    for returned in region.results:
        if isinstance(returned, Value) and returned.id not in defined:
            raise InvalidIR(f"{returned!r} is returned but not defined")


def verify_partition(partition: Partition) -> None:
    """Checks that rules allow all loops, tiles divide dims, and partial sums are finished.

    Raises:
      InvalidIR: an invariant is broken.
    """
    module, mesh = partition.module, partition.mesh
    for op in module.ops:
        rule = partition.rules[op.id]
        taken: dict[int, int] = {}
        for axis, size in enumerate(mesh.sizes):
            f = partition.loops[axis][op.id]
            if f == NONE:
                continue
            if op.regions or not 0 <= f < len(rule.sizes) or f in rule.blocked:
                raise _wrong(module, op, f"loops over factor {f}, which its rule does not allow")
            taken[f] = taken.get(f, 1) * size
        if ring := partition.ring(op):
            for fault in ring.faults(rule):
                raise _wrong(module, op, f"runs as a ring with a fault: {fault}")
        for f, n in taken.items():
            for g in rule.majors_of(f):
                if taken.get(g, 1) != rule.sizes[g]:
                    raise _wrong(module, op, f"loops over factor {f} before {g} is used up")
            if rule.sizes[f] % n:
                raise _wrong(module, op, f"loops {n} times over a factor of {rule.sizes[f]}")
    for value in module.values:
        left = list(value.type.shape)
        for axis, size in enumerate(mesh.sizes):
            d = partition.tiles[axis][value.id]
            if d in (NONE, REPLICATED):
                continue
            if not 0 <= d < len(left) or left[d] % size:
                raise InvalidIR(
                    f"{value!r} cannot be tiled on dim {d} along axis {mesh.names[axis]!r}"
                )
            left[d] //= size
        for triple in mesh.triples:
            if all(partition.tiles[a][value.id] >= 0 for a in triple):
                raise InvalidIR(f"{value!r} is tiled on two axes and their diagonal")
    for axis, resting in enumerate(partition.partials):
        for op in module.ops:
            partial = [v for _, v in op.inputs() if v.id in resting]
            if partial and partition.loops[axis][op.id] != NONE:
                raise _wrong(
                    module, op, f"loops over an axis on which {partial[0]!r} is a partial sum"
                )
        for result in module.body.results:
            if not isinstance(result, Literal) and result.id in resting:
                raise InvalidIR(f"{result!r} is returned as a partial sum")


def _wrong(module: Module, op: Op, what: str) -> InvalidIR:
    at = module.ops.index(op)
    near = module.ops[max(0, at - WINDOW) : at + WINDOW + 1]
    lines = [
        f"{'>' if o is op else ' '} {', '.join(map(repr, o.results))} = {o.prim}" for o in near
    ]
    where = f" (from {op.source})" if op.source else ""
    return InvalidIR(f"{op.prim}{where} {what}:\n" + "\n".join(lines))
