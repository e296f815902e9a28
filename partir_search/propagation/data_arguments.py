"""Data arguments of a train step: neither train state nor frozen parameters."""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from partir_search.ir.analysis.def_use import def_use
from partir_search.ir.core import Module, Op, Value, walk_regions
from partir_search.ir.kind import Kind
from partir_search.rules.registry import RuleTable, edges_of

_MEETING = (Kind.CONTRACTION, Kind.GATHER, Kind.SCATTER)
Place = tuple[Value, int]  # value and dim


def data_arguments(module: Module) -> tuple[int, ...]:
    """Positions of the arguments that hold data; () for a module without ties.

    An argument is state if it is tied to a result. Of the others, all are data but *frozen* ones:
    parameters of a teacher, of a reference, or of a base under adapters. The leaves of a frozen
    argument have several leading dims, and most of its matrices lose theirs to another argument
    before any reduction: a product sums over the dim, or a lookup indexes it. The leading dim of
    data, the batch, lasts until the loss.
    """
    return module.analysis(_data_arguments)


def batched_arguments(module: Module) -> tuple[int, ...]:
    """Positions of the data arguments with two dims or more, of which the first has the batch."""
    args = module.body.args
    return tuple(i for i in data_arguments(module) if len(args[i].type.shape) >= 2)


def is_key(value: Value) -> bool:
    """True for a key of the random number generator, or an array of keys."""
    kind = value.type
    if jnp.issubdtype(kind.dtype, jax.dtypes.prng_key):
        return True
    return kind.shape == (2,) and kind.dtype == jnp.uint32


def _data_arguments(module: Module) -> tuple[int, ...]:
    tied = {a for a, _ in module.ties}
    if not tied:
        return ()
    untied = [i for i in range(len(module.body.args)) if i not in tied]
    groups: dict[str, list[int]] = collections.defaultdict(list)  # by top-level argument
    for i in untied:
        value = module.body.args[i]
        if value.type.shape and not is_key(value):
            groups[module.arg_paths[i].split("/")[0]].append(i)
    frozen = _frozen(module, list(groups.values())) if len(groups) > 1 else frozenset()
    return tuple(i for i in untied if i not in frozen)


def _frozen(module: Module, groups: Sequence[Sequence[int]]) -> frozenset[int]:
    """Positions of frozen parameters among groups of arguments; at least one group has data."""
    args = module.body.args
    unlike = [g for g in groups if len({args[i].type.shape[0] for i in g}) > 1]
    if not unlike:
        return frozenset()
    lasts = _lasts(module, groups)

    def is_frozen(group: Sequence[int]) -> bool:
        matrices = [args[i] for i in group if len(args[i].type.shape) >= 2]
        return 2 * sum(map(lasts, matrices)) < len(matrices)

    found = [group for group in unlike if is_frozen(group)]
    return frozenset[int]().union(*found) if len(found) < len(groups) else frozenset()


def _lasts(module: Module, groups: Sequence[Sequence[int]]) -> Callable[[Value], bool]:
    """Function from an argument to True if its leading dim lasts until a reduction or a result."""
    behind = _groups_behind(module, groups)
    leaving = _edges(module)
    users, rule_of = def_use(module).users, RuleTable()
    results = {x.id for x in module.body.results if isinstance(x, Value)}

    def meets(op: Op) -> bool:
        """True if an op combines several groups."""
        return len({g for _, x in op.inputs() for g in behind[x.id]}) > 1

    def after(op: Op, place: Place) -> list[Place] | None:
        """Places of a dim in the results of an op; None if a reduction ends it."""
        value, dim = place
        if op.regions:
            edges = edges_of(op).inputs
            return [
                (op.regions[r].args[i], max(dim - stacked, 0))
                for operand, r, i, stacked in edges
                if op.operands[operand] is value
            ]
        rule, found = rule_of(op), list[Place]()
        for i, x in op.inputs():
            factor = rule.operands[i][dim] if x is value else -1
            if factor < 0:
                continue
            places = [
                (result, d)
                for result, dims in zip(op.results, rule.results, strict=True)
                for d, f in enumerate(dims)
                if f == factor
            ]
            if not places and not (rule.kind in _MEETING and meets(op)):
                return None
            found += places
        return found

    def lasts(argument: Value) -> bool:
        todo, seen = [(argument, 0)], set[tuple[int, int]]()
        while todo:
            value, dim = place = todo.pop()
            if (value.id, dim) in seen or not value.type.shape:
                continue
            seen.add((value.id, dim))
            if value.id in results:
                return True
            todo += [(v, max(dim + stacked, 0)) for v, stacked in leaving.get(value.id, ())]
            for op in users[value.id]:
                places = [] if op.backward else after(op, place)
                if places is None:
                    return True
                todo += places
        return False

    return lasts


def _edges(module: Module) -> dict[int, list[tuple[Value, int]]]:
    """By id of a region's result, the values after it and their further leading dims."""
    found: dict[int, list[tuple[Value, int]]] = collections.defaultdict(list)
    for op in module.ops:
        if not op.regions:
            continue
        edges = edges_of(op)
        to = [(r, i, op.results[out], stacked) for r, i, out, stacked in edges.outputs]
        to += [(r, i, op.regions[n].args[place], 0) for r, i, n, place in edges.carries]
        for r, i, value, stacked in to:
            inner = op.regions[r].results[i]
            if isinstance(inner, Value):
                found[inner.id].append((value, stacked))
        for r, i, out in edges.finals:
            found[op.regions[r].args[i].id].append((op.results[out], 0))
    return found


def _groups_behind(module: Module, groups: Sequence[Sequence[int]]) -> list[frozenset[int]]:
    """By value id, the groups of arguments behind the value."""
    none = frozenset[int]()
    behind = [none] * len(module.values)
    for n, group in enumerate(groups):
        for i in group:
            behind[module.body.args[i].id] = frozenset([n])
    for op in module.ops:
        all_behind = none.union(*(behind[x.id] for _, x in op.inputs()))
        if not all_behind:
            continue
        for region in op.regions:  # any operand may reach any value inside
            for inner in walk_regions(region):
                for x in inner.args:
                    behind[x.id] = behind[x.id] | all_behind
        for x in op.results:
            behind[x.id] = all_behind
    return behind
