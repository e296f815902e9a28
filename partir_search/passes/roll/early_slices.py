"""Slices of one value by layer, moved in front of the layers.

`for key in jax.random.split(key, layers)` slices a row of the keys in each layer. Slices of unlike
rows are unlike ops; right behind the maker of the keys, the slices are values given to the layers.
"""

from __future__ import annotations

import collections
import dataclasses

from partir_search.ir.core import Module, Op, Region, Value
from partir_search.ir.role import Role
from partir_search.rules.registry import role_of

_VIEWS = frozenset({Role.SQUEEZE, Role.RESHAPE})


def with_early_slices(module: Module) -> Module:
    """Module with several slices of a value right behind the value; the same one without any."""
    body = _ordered(module.body)
    return module if body is module.body else dataclasses.replace(module, body=body)


def _ordered(region: Region) -> Region:
    forward = [op for op in region.ops if role_of(op) is Role.SLICE and not op.backward]
    slices = collections.Counter(v for op in forward for _, v in op.inputs())
    place: dict[Value, int] = {}  # of the op that makes a value, or behind which the op moves
    moved = set[Value]()
    keys: list[tuple[int, int]] = []
    ops = [_with_regions(op) for op in region.ops]
    for at, op in enumerate(ops):
        role, to = role_of(op), at
        x = op.operands[0] if len(op.operands) == 1 else None
        sliced = role is Role.SLICE and isinstance(x, Value) and slices[x] > 1
        if isinstance(x, Value) and not op.backward and (sliced or (role in _VIEWS and x in moved)):
            to = place.get(x, -1)
            moved.update(op.results)
        place.update(dict.fromkeys(op.results, to))
        keys.append((to, at))
    order = sorted(range(len(ops)), key=keys.__getitem__)
    if order == list(range(len(ops))) and all(a is b for a, b in zip(ops, region.ops, strict=True)):
        return region
    return Region(region.args, tuple(ops[at] for at in order), region.results)


def _with_regions(op: Op) -> Op:
    if not op.regions:
        return op
    regions = tuple(map(_ordered, op.regions))
    if all(a is b for a, b in zip(regions, op.regions, strict=True)):
        return op
    return op.with_parts(op.operands, op.results, regions)
