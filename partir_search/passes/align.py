"""Dims that a stencil made a little shorter or longer than the grid: padded, so that they divide.

The differences of 4096 rows are 4095, which no mesh tiles. Padded to 4096 they lie where the rows
lie that they come from, and what an op reads of the next tile is a halo. Dims that ops read shifted
(`Reads`) by little are a group; all of it that does not divide as the best of it does is padded.
Groups that are read in steps, or resized, lie beside each other as well: every second of the 254
inner rows of 256 is one of 127, which are padded to 128.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Collection, Iterator, Mapping, Sequence

from partir_search.ir.analysis.union_find import UnionFind
from partir_search.ir.core import Module, Op, Value
from partir_search.ir.mesh import MeshShape
from partir_search.ir.rule import NONE, OpRule
from partir_search.passes.pad import pad_module
from partir_search.passes.pad_choice import DimClasses, Pad
from partir_search.rules.registry import RuleTable
from partir_search.rules.shifts import LITTLE

MOST = 1.25  # a padded dim is at most this much longer
RESIZED = 1 + LITTLE / 2  # of a dim whose extent follows from no other that divides
LINKS = 3  # groups from which an extent reaches a group

Ratio = tuple[int, int]  # elements of the dim that is read, per elements of the walked one
Shifted = tuple[int, int, int, int, Ratio]  # operand, dim, result, dim
Dim = tuple[Value, int]
Pair = tuple[Dim, Dim, Ratio]
Link = tuple[int, int, Ratio]  # groups


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
    if not any(_matters(pair, given, mesh) for pair in dict.fromkeys(shifts)):
        return ()
    classes = DimClasses(module, rules)
    extent: dict[int, int] = {}
    groups = UnionFind(classes.count)
    places: dict[int, tuple[Value, int]] = {}
    for read, walked, ratio in shifts:
        for value, dim in (read, walked):
            cls = classes.of(value, dim)
            extent[cls] = value.type.shape[dim]
            places.setdefault(cls, (value, dim))
        if ratio == (1, 1):
            groups.merge(classes.of(*read), classes.of(*walked))
    members: dict[int, list[int]] = collections.defaultdict(list)
    for cls in extent:
        members[groups.find(cls)].append(cls)
    links = {
        (groups.find(classes.of(*read)), groups.find(classes.of(*walked)), ratio)
        for read, walked, ratio in shifts
        if ratio != (1, 1)
    }
    extents = {cls: {extent[c] for c in together} for cls, together in members.items()}
    _link(extents, links, mesh)
    able = _computed(module, rules, classes)
    pads = []
    for cls, together in members.items():
        tiles = _tiles(extents[cls], mesh)
        for member in together:
            size = _longer(extent[member], extents[cls], tiles)
            if size and member in able:
                value, dim = places[member]
                pads.append(Pad(value.name, dim, size))
    return tuple(pads)


def _link(extents: Mapping[int, set[int]], links: Collection[Link], mesh: MeshShape) -> None:
    """Adds to the extents of each group those that would lie beside extents of linked groups."""
    given = {cls: tuple(sizes) for cls, sizes in extents.items()}
    for _ in range(LINKS if links else 0):
        for read, walked, (step, over) in links:
            found = {n: _beside(extents[n], mesh) for n in (read, walked)}
            for from_, to, ratio in ((read, walked, (over, step)), (walked, read, (step, over))):
                extents[to].update(_scaled(found[from_], given[to], *ratio))


def _beside(extents: Collection[int], mesh: MeshShape) -> list[tuple[int, list[int]]]:
    """Extents, each with the numbers of tiles that it has."""
    return [(n, _tiles([n], mesh)) for n in extents]


def _scaled(
    extents: Sequence[tuple[int, list[int]]], given: Sequence[int], times: int, by: int
) -> Iterator[int]:
    """Extents that are so many times those that divide, or a little longer than given ones."""
    for n, tiles in extents:
        if not tiles:
            continue
        m = -(-n * times // by)
        yield m
        if n * times % by or m % tiles[0]:
            for size in given:
                longer = -(-size // tiles[0]) * tiles[0]
                if longer <= RESIZED * size:
                    yield longer


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
            step = abs(r.step)
            near = abs(n * r.over - step * m) <= LITTLE * max(n * r.over, step * m)
            if rule.resizing and near and m == rule.sizes[f]:
                yield r.operand, r.dim, i, d, (step, r.over)


def _pairs(op: Op, shifted: Sequence[Shifted]) -> Iterator[Pair]:
    """The dims themselves: what is read, and what is walked."""
    for i, d, r, e, ratio in shifted:
        x, made = op.operands[i], op.results[r] if r >= 0 else op.operands[-1 - r]
        if isinstance(x, Value) and isinstance(made, Value):
            yield (x, d), (made, e), ratio


def _matters(pair: Pair, given: int, mesh: MeshShape) -> bool:
    """True if a dim that is read, or the one that is walked, could be longer with a gain: of the
    first `given` values, arguments and constants, none can (tokens, all but the last of which are
    taken).
    """
    read, walked, ratio = pair
    extents = [{v.type.shape[d]} for v, d in (read, walked)]
    if ratio == (1, 1):
        extents = [extents[0] | extents[1]] * 2
    else:
        _link(dict(enumerate(extents)), [(0, 1, ratio)], mesh)
    return any(
        v.id >= given and _longer(v.type.shape[d], near, _tiles(near, mesh))
        for (v, d), near in zip((read, walked), extents, strict=True)
    )


def _computed(module: Module, rules: Sequence[OpRule], classes: DimClasses) -> set[int]:
    """Classes of dims that some op makes as long as it is told to."""
    found: set[int] = set()
    for op, rule in zip(module.ops, rules, strict=True):
        for v, dims in zip(op.results, rule.results, strict=True):
            found.update(
                classes.of(v, d) for d, f in enumerate(dims) if f != NONE and classes.carries(op, f)
            )
    return found


def _tiles(extents: Collection[int], mesh: MeshShape) -> list[int]:
    """Numbers of tiles that the mesh can make, and of which some extent is a multiple."""
    devices = math.prod(mesh.sizes)
    tiles = [t for t in range(devices, 1, -1) if devices % t == 0]
    return [t for t in tiles if any(n % t == 0 and n > t for n in extents)]


def _longer(n: int, extents: Collection[int], tiles: Sequence[int]) -> int:
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
