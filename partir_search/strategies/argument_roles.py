"""Roles of the arguments of a step: parameters, optimizer state, data; found by dataflow."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from partir_search.ir.analysis.def_use import def_use
from partir_search.ir.core import Module, Value, walk_regions
from partir_search.propagation.data_arguments import data_arguments


@dataclasses.dataclass(frozen=True, slots=True)
class Roles:
    """Ids of parameters, optimizer state and data: values, or classes of a graph."""

    parameters: tuple[int, ...]
    optimizer: tuple[int, ...]
    data: tuple[int, ...]

    def of(self, class_of: Sequence[int]) -> Roles:
        """Roles mapped by `class_of` to classes, or to values of a fold.

        A class of parameters and optimizer state counts as parameters.
        """
        parameters, optimizer, data = (
            tuple(dict.fromkeys(class_of[v] for v in ids))
            for ids in (self.parameters, self.optimizer, self.data)
        )
        return Roles(parameters, tuple(c for c in optimizer if c not in set(parameters)), data)


def find_roles(module: Module) -> Roles:
    """Roles of the arguments of a module, as value ids.

    Arguments tied to results are state, untied arguments are data or parameters that are not
    trained (`data_arguments`). Trained parameters are the state behind
    an untied result (the loss), the rest of the state belongs to the optimizer; if every result is
    tied, parameters are the state behind most of the new state. Without ties a top-level argument
    is data if its leaves share their leading dim, and parameters otherwise. Scalars have no role.
    """
    tied = {a for a, _ in module.ties}
    ranked = [(i, v) for i, v in enumerate(module.body.args) if v.type.shape]
    if tied:
        loss = _ancestors(module, exclude={r for _, r in module.ties})
        if not loss:
            loss = _influential(module, [v for i, v in ranked if i in tied])
        given = set(data_arguments(module))
        state = tied | given
        parameters = [v for i, v in ranked if v.id in loss if i in tied] + [
            v for i, v in ranked if i not in state
        ]
        optimizer = [v for i, v in ranked if i in tied and v.id not in loss]
        data = [v for i, v in ranked if i in given]
    else:
        groups: dict[str, list[Value]] = {}
        for i, v in ranked:
            groups.setdefault(module.arg_paths[i].split("/")[0], []).append(v)
        alike = [len({v.type.shape[0] for v in g}) == 1 for g in groups.values()]
        data = [v for g, same in zip(groups.values(), alike, strict=True) if same for v in g]
        parameters = [v for _, v in ranked if v not in data]
        optimizer = []

    def ids(values: Sequence[Value]) -> tuple[int, ...]:
        return tuple(v.id for v in values)

    return Roles(ids(parameters), ids(optimizer), ids(data))


def _ancestors(module: Module, exclude: set[int]) -> set[int]:
    """Ids of values behind the results outside of `exclude`."""
    makers = def_use(module).makers
    seen: set[int] = set()
    todo = [
        x.id for i, x in enumerate(module.body.results) if i not in exclude and isinstance(x, Value)
    ]
    while todo:
        v = todo.pop()
        if v not in seen:
            seen.add(v)
            maker = makers[v]
            if maker is not None:
                todo.extend(x.id for _, x in maker.inputs())
    return seen


def _influential(module: Module, state: Sequence[Value]) -> set[int]:
    """Ids of values in `state` behind more than half as many results as the most influential."""
    reached_by = {v.id: 1 << i for i, v in enumerate(state)}  # per value, a bit for each of `state`
    for op in module.ops:
        mask = 0
        for _, v in op.inputs():
            mask |= reached_by.get(v.id, 0)
        if mask:
            for region in op.regions:  # any operand may reach any value inside
                for inner in walk_regions(region):
                    reached_by.update((a.id, mask) for a in inner.args)
            reached_by.update((r.id, mask) for r in op.results)
    count = [0] * len(state)
    for result in module.body.results:
        mask = reached_by.get(result.id, 0) if isinstance(result, Value) else 0
        for i in range(len(state)):
            count[i] += mask >> i & 1
    return {v.id for v, n in zip(state, count, strict=True) if n > max(count) / 2}
