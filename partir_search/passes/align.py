"""Dims that a stencil made a little shorter or longer than the grid: padded, so that they divide.

The differences of 4096 rows are 4095, which no mesh tiles. Padded to 4096 they lie where the rows
lie that they come from, and what an op reads of the next tile is a halo. Dims that ops read shifted
(`Reads`) by little are a group; all of it that does not divide as the best of it does is padded.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Iterator, Sequence

from partir_search.ir.core import Module, Op, Value
from partir_search.ir.mesh import MeshShape
from partir_search.ir.rule import NONE, OpRule
from partir_search.passes.pad import pad_module
from partir_search.passes.pad_choice import DimClasses, Pad
from partir_search.rules.registry import RuleTable
from partir_search.rules.shifts import LITTLE

MOST = 1.25  # a padded dim is at most this much longer

Shifted = tuple[int, int, int, int]  # operand, dim, result, dim


def aligned(module: Module, mesh: MeshShape) -> tuple[Module, tuple[Pad, ...]]:
    """The module with its stencils' dims padded to the grid's, and what was padded."""
    table = RuleTable()
    rules = [table(op) for op in module.ops]
    pads = find_aligned(module, rules, mesh)
    return (pad_module(module, rules, pads), pads) if pads else (module, ())


def find_aligned(module: Module, rules: Sequence[OpRule], mesh: MeshShape) -> tuple[Pad, ...]:
    """Pads that align dims of a module."""
    near: dict[int, tuple[Shifted, ...]] = {}  # by rule: most ops have none
    for op, rule in zip(module.ops, rules, strict=True):
        if rule.reads and id(rule) not in near:
            near[id(rule)] = tuple(_shifted(op, rule))
    if not any(near.values()):
        return ()
    given = len(module.body.args) + len(module.constants)
    shifts = [
        pair
        for op, rule in zip(module.ops, rules, strict=True)
        for pair in _pairs(op, near.get(id(rule), ()))
    ]
    if not any(_matters(pair, given, mesh) for pair in shifts):
        return ()
    classes = DimClasses(module, rules)
    extent: dict[int, int] = {}
    group: dict[int, int] = {}

    def root(cls: int) -> int:
        while group.setdefault(cls, cls) != cls:
            cls = group[cls]
        return cls

    places: dict[int, tuple[Value, int]] = {}
    for read, walked in shifts:
        for value, dim in (read, walked):
            cls = classes.of(value, dim)
            extent[cls] = value.type.shape[dim]
            places.setdefault(cls, (value, dim))
        group[root(classes.of(*read))] = root(classes.of(*walked))
    members: dict[int, list[int]] = collections.defaultdict(list)
    for cls in extent:
        members[root(cls)].append(cls)
    able = _computed(module, rules, classes)
    pads = []
    for together in members.values():
        tiles = _tiles([extent[c] for c in together], mesh)
        for cls in together:
            size = _longer(extent[cls], [extent[c] for c in together], tiles)
            if size and cls in able:
                value, dim = places[cls]
                pads.append(Pad(value.name, dim, size))
    return tuple(pads)


def apart(
    module: Module, rules: Sequence[OpRule], pads: Sequence[Pad], others: Sequence[Pad]
) -> tuple[Pad, ...]:
    """Those of `others` that pad what `pads` do not."""
    classes, values = DimClasses(module, rules), module.value_names()
    taken = {classes.of(values[p.value], p.dim) for p in pads}
    return tuple(p for p in others if classes.of(values[p.value], p.dim) not in taken)


def _shifted(op: Op, rule: OpRule) -> Iterator[Shifted]:
    """Dims that are read shifted by little, with the dim that the op walks: of a result, or of an
    operand (counted from -1 down).
    """
    for r in rule.reads:
        f = rule.operands[r.operand][r.dim]
        n = op.operands[r.operand].type.shape[r.dim]
        walked = [(i, dims.index(f)) for i, dims in enumerate(rule.results) if f in dims]
        walked += [
            (-1 - i, dims.index(f))
            for i, dims in enumerate(rule.operands)
            if f in dims and i != r.operand
        ]
        for i, d in walked[:1]:
            m = (op.results[i] if i >= 0 else op.operands[-1 - i]).type.shape[d]
            if rule.resizing and abs(n - m) <= LITTLE * max(n, m) and m == rule.sizes[f]:
                yield r.operand, r.dim, i, d


def _pairs(
    op: Op, shifted: Sequence[Shifted]
) -> Iterator[tuple[tuple[Value, int], tuple[Value, int]]]:
    """The dims themselves: what is read, and what is walked."""
    for i, d, r, e in shifted:
        x, made = op.operands[i], op.results[r] if r >= 0 else op.operands[-1 - r]
        if isinstance(x, Value) and isinstance(made, Value):
            yield (x, d), (made, e)


def _matters(pair: Sequence[tuple[Value, int]], given: int, mesh: MeshShape) -> bool:
    """True if a dim that is read, or the one that is walked, could be longer with a gain: of the
    first `given` values, arguments and constants, none can (tokens, all but the last of which are
    taken).
    """
    extents = [v.type.shape[d] for v, d in pair]
    tiles = _tiles(extents, mesh)
    sizes = zip(extents, pair, strict=True)
    return any(v.id >= given and _longer(n, extents, tiles) for n, (v, _) in sizes)


def _computed(module: Module, rules: Sequence[OpRule], classes: DimClasses) -> set[int]:
    """Classes of dims that some op makes as long as it is told to."""
    found: set[int] = set()
    for op, rule in zip(module.ops, rules, strict=True):
        for v, dims in zip(op.results, rule.results, strict=True):
            found.update(
                classes.of(v, d) for d, f in enumerate(dims) if f != NONE and classes.carries(op, f)
            )
    return found


def _tiles(extents: Sequence[int], mesh: MeshShape) -> list[int]:
    """Numbers of tiles that the mesh can make, and of which some extent is a multiple."""
    devices = math.prod(mesh.sizes)
    tiles = [t for t in range(devices, 1, -1) if devices % t == 0]
    return [t for t in tiles if any(n % t == 0 and n > t for n in extents)]


def _longer(n: int, extents: Sequence[int], tiles: Sequence[int]) -> int:
    """The extent to pad `n` to; 0 if it divides as it is, or would be much longer."""
    for t in tiles:
        if n % t == 0:
            return 0
        wholes = [m for m in extents if m % t == 0 and m > n]
        size = min(wholes, default=-(-n // t) * t)
        if size > MOST * n:
            size = -(-n // t) * t
        if size <= MOST * n:
            return size
    return 0
