"""Blocks of scopes, and an order of their ops with few loops."""

from __future__ import annotations

import dataclasses
import heapq
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Union

from partir_search.ir.core import Op
from partir_search.ir.printing.loops import Nest
from partir_search.ir.printing.weights import Path
from partir_search.ir.rule import NONE

STRUCTURE = 2  # minimum number of heavy ops in a block
STRUCTURE_BACKWARD = 3  # the backward pass of a product has two products


@dataclasses.dataclass(frozen=True, slots=True)
class Scope:
    """Neighbouring ops traced under one path, in one pass.

    Attributes:
      path: modules and named scopes.
      backward: the ops belong to the backward pass.
      ops: all ops, inner scopes included.
      items: inner scopes, and the ops between them.
    """

    path: Path
    backward: bool
    ops: tuple[Op, ...]
    items: tuple[Item, ...]


Item = Union[Op, Scope]


def scopes_of(
    ops: Sequence[Op], paths: Sequence[Path], weighs: Callable[[Op], bool], depth: int = 0
) -> tuple[Item, ...]:
    """Ops, with a `Scope` for each run of neighbours under one path with enough heavy ops.

    Args:
      paths: by op id.
      weighs: True for heavy ops, such as products, and False for light ones, such as elementwise
        ops.
    """

    def key(op: Op) -> tuple[Path, bool]:
        return _name(paths[op.id], depth), op.backward

    items: list[Item] = []
    for (name, backward), group in itertools.groupby(ops, key):
        inside = tuple(group)
        least = STRUCTURE_BACKWARD if backward else STRUCTURE
        if name and sum(map(weighs, inside)) >= least:
            below = depth + len(name)
            inner = scopes_of(inside, paths, weighs, below)
            if len(inner) == 1 and isinstance(inner[0], Scope):
                items.append(inner[0])
            else:
                items.append(Scope(paths[inside[0].id][:below], backward, inside, inner))
        else:
            items += inside
    return tuple(items)


def _name(path: Path, depth: int) -> Path:
    """The name at `depth` of a path, with the number if it names a list: `layers`, `0`."""
    end = depth + 1
    while end < len(path) and path[end].isdecimal():
        end += 1
    return path[depth:end]


def gathered(
    ops: Sequence[Op], nests: Mapping[int, Nest], weighs: Callable[[Op], bool], given: set[int]
) -> tuple[Op, ...]:
    """The ops reordered to let neighbours share loops.

    Light ops on values `given` go first if they need loops of their own or none, such as reshapes
    of parameters and tables of positions; their results become given. Then ops without loops go
    before loops. Heavy ops keep their order.
    """
    early = {op.id for op in _on(ops, weighs, set(given))}
    shared = {nests[op.id] for op in ops if op.id not in early} - {()}
    first = _on([op for op in ops if nests[op.id] not in shared], weighs, given)
    early = {op.id for op in first}
    then = [op for op in ops if op.id not in early]
    return (*_in_order(first, nests, weighs), *_in_order(then, nests, weighs))


def _on(ops: Sequence[Op], weighs: Callable[[Op], bool], given: set[int]) -> list[Op]:
    """Light ops on `given` values; their results are added to `given`."""
    found = []
    for op in ops:
        if not weighs(op) and all(v.id in given for _, v in op.inputs()):
            found.append(op)
            given.update(r.id for r in op.results)
    return found


def _in_order(
    ops: Sequence[Op], nests: Mapping[int, Nest], weighs: Callable[[Op], bool]
) -> Iterator[Op]:
    """Ops after the makers of their operands; ops of one loop nest together as far as possible."""
    waits, after = _waits(ops, weighs)
    ready: dict[Nest, list[int]] = {(): []}

    def release(i: int) -> None:
        heapq.heappush(ready.setdefault(nests[ops[i].id], []), i)

    for i in range(len(ops)):
        if not waits[i]:
            release(i)
    nest: Nest = ()
    for _ in ops:
        if not ready[nest]:
            nonempty = [n for n, queue in ready.items() if queue]
            nest = () if ready[()] else min(nonempty, key=lambda n: ready[n][0])
        at = heapq.heappop(ready[nest])
        yield ops[at]
        for j in after[at]:
            waits[j] -= 1
            if not waits[j]:
                release(j)


def _waits(ops: Sequence[Op], weighs: Callable[[Op], bool]) -> tuple[list[int], list[list[int]]]:
    """By position: number of ops waited for, and positions of the ops waiting."""
    made = {r.id: i for i, op in enumerate(ops) for r in op.results}
    waits, after = [0] * len(ops), [list[int]() for _ in ops]
    last = NONE
    for i, op in enumerate(ops):
        needed = {made[v.id] for _, v in op.inputs() if v.id in made}
        if weighs(op):
            needed |= {last} - {NONE}
            last = i
        waits[i] = len(needed)
        for j in needed:
            after[j].append(i)
    return waits, after
