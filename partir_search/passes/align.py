"""Padding of dims that a stencil made slightly shorter or longer than its grid.

The difference of 4096 neighbouring rows has 4095 rows, an extent no mesh tiles evenly. Padded to
4096, its tiles and the tiles of the rows have equal bounds, and an op reads only a halo of the next
tile. Dims read at a small shift (`InputWindow`) form a group. The extent of a group divisible by
the most devices decides: all further dims of the group are padded to divide by the same number.
Groups connected by a strided read or a resize align as well: every second of the 254 inner rows of
256 gives 127 rows, padded to 128.
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

MAX_GROWTH = 1.25  # largest ratio of padded to original extent
MAX_RESIZED_GROWTH = (
    1 + LITTLE / 2
)  # the same, where a linked group's extent does not divide after scaling
LINK_ROUNDS = 3  # links over which an extent reaches a group

Ratio = tuple[int, int]  # elements of the dim read : elements of the dim iterated over
Shifted = tuple[int, int, int, int, Ratio]  # operand, its dim, result, its dim, ratio
Dim = tuple[Value, int]
Pair = tuple[Dim, Dim, Ratio]
Link = tuple[int, int, Ratio]  # group read, group iterated over, ratio


def aligned(module: Module, mesh: MeshShape) -> tuple[Module, tuple[Pad, ...]]:
    """Returns the module with dims of stencils padded to the extent of their grid, and the pads."""
    table = RuleTable()
    rules = [table(op) for op in module.ops]
    pads = find_aligned(module, rules, mesh)
    return (pad_module(module, rules, pads), pads) if pads else (module, ())


def find_aligned(module: Module, rules: Sequence[OpRule], mesh: MeshShape) -> tuple[Pad, ...]:
    """Returns pads for the stencils' dims of a module.

    Args:
      rules: of the module's ops, by op id.
    """
    shifted_of: dict[int, tuple[Shifted, ...]] = {}  # by id of the rule; most rules have none
    for op, rule in zip(module.ops, rules, strict=True):
        if rule.reads and id(rule) not in shifted_of:
            shifted_of[id(rule)] = tuple(_shifted(op, rule))
    if not any(shifted_of.values()):
        return ()
    given = len(module.body.args) + len(module.constants)
    shifts = [
        pair
        for op, rule in zip(module.ops, rules, strict=True)
        for pair in _pairs(op, shifted_of.get(id(rule), ()))
    ]
    if not any(_may_gain(pair, given, mesh) for pair in dict.fromkeys(shifts)):
        return ()
    classes = DimClasses(module, rules)
    extent: dict[int, int] = {}
    groups = UnionFind(classes.count)
    places: dict[int, tuple[Value, int]] = {}
    for read, iterated, ratio in shifts:
        for value, dim in (read, iterated):
            cls = classes.of(value, dim)
            extent[cls] = value.type.shape[dim]
            places.setdefault(cls, (value, dim))
        if ratio == (1, 1):
            groups.merge(classes.of(*read), classes.of(*iterated))
    members: dict[int, list[int]] = collections.defaultdict(list)
    for cls in extent:
        members[groups.find(cls)].append(cls)
    links = {
        (groups.find(classes.of(*read)), groups.find(classes.of(*iterated)), ratio)
        for read, iterated, ratio in shifts
        if ratio != (1, 1)
    }
    extents = {
        cls: {extent[c] for c in classes_of_group} for cls, classes_of_group in members.items()
    }
    _link(extents, links, mesh)
    paddable = _computed(module, rules, classes)
    pads = []
    for cls, classes_of_group in members.items():
        tiles = _tiles(extents[cls], mesh)
        for member in classes_of_group:
            size = _padded_extent(extent[member], extents[cls], tiles)
            if size and member in paddable:
                value, dim = places[member]
                pads.append(Pad(value.name, dim, size))
    return tuple(pads)


def _link(extents: Mapping[int, set[int]], links: Collection[Link], mesh: MeshShape) -> None:
    """Adds to each group's extents the extents aligned with a linked group's, in place.

    Args:
      extents: by group, the extents of its dims.
    """
    given = {cls: tuple(sizes) for cls, sizes in extents.items()}
    for _ in range(LINK_ROUNDS if links else 0):
        for read, iterated, (step, over) in links:
            found = {n: _with_tiles(extents[n], mesh) for n in (read, iterated)}
            for from_, to, ratio in (
                (read, iterated, (over, step)),
                (iterated, read, (step, over)),
            ):
                extents[to].update(_scaled(found[from_], given[to], *ratio))


def _with_tiles(extents: Collection[int], mesh: MeshShape) -> list[tuple[int, list[int]]]:
    """Returns each extent with the numbers of tiles into which the mesh can divide the extent."""
    return [(n, _tiles([n], mesh)) for n in extents]


def _scaled(
    extents: Sequence[tuple[int, list[int]]], given: Sequence[int], times: int, by: int
) -> Iterator[int]:
    """Yields divisible extents times `times / by`, and given extents rounded up to the same tiles.

    Args:
      extents: of the linked group, with numbers of tiles.
      given: extents of the dims of the group.
    """
    for n, tiles in extents:
        if not tiles:
            continue
        m = -(-n * times // by)
        yield m
        if n * times % by or m % tiles[0]:
            for size in given:
                longer = -(-size // tiles[0]) * tiles[0]
                if longer <= MAX_RESIZED_GROWTH * size:
                    yield longer


def disjoint_pads(
    module: Module, rules: Sequence[OpRule], pads: Sequence[Pad], candidates: Sequence[Pad]
) -> tuple[Pad, ...]:
    """Returns the pads of `candidates` whose dims are not padded by `pads`."""
    classes, values = DimClasses(module, rules), module.value_names()
    taken = {classes.of(values[p.value], p.dim) for p in pads}
    return tuple(p for p in candidates if classes.of(values[p.value], p.dim) not in taken)


def _shifted(op: Op, rule: OpRule) -> Iterator[Shifted]:
    """Yields dims read at a small shift, each with the dim iterated over by the op.

    The iterated dim belongs to a result, or to a further operand: operand i counts as result ``-1 -
    i``.
    """
    for read in rule.reads:
        factor = rule.operands[read.operand][read.dim]
        extent_read = op.operands[read.operand].type.shape[read.dim]
        iterated = [
            (i, dims.index(factor)) for i, dims in enumerate(rule.results) if factor in dims
        ]
        iterated += [
            (-1 - i, dims.index(factor))
            for i, dims in enumerate(rule.operands)
            if factor in dims and i != read.operand
        ]
        for i, d in iterated[:1]:
            extent_iterated = (op.results[i] if i >= 0 else op.operands[-1 - i]).type.shape[d]
            step = abs(read.step)
            is_small = abs(extent_read * read.over - step * extent_iterated) <= LITTLE * max(
                extent_read * read.over, step * extent_iterated
            )
            if rule.resizing and is_small and extent_iterated == rule.sizes[factor]:
                yield read.operand, read.dim, i, d, (step, read.over)


def _pairs(op: Op, shifted: Sequence[Shifted]) -> Iterator[Pair]:
    """Yields the pairs (dim read, dim iterated over, ratio) of one op's operands and results."""
    for i, d, r, e, ratio in shifted:
        x, made = op.operands[i], op.results[r] if r >= 0 else op.operands[-1 - r]
        if isinstance(x, Value) and isinstance(made, Value):
            yield (x, d), (made, e), ratio


def _may_gain(pair: Pair, given: int, mesh: MeshShape) -> bool:
    """True if padding a dim read, or the dim iterated over, would let more devices tile the dim.

    Args:
      given: number of arguments and constants, which come first by id and are never aligned: of a
        batch of tokens, a model reads all but the last.
    """
    read, iterated, ratio = pair
    extents = [{v.type.shape[d]} for v, d in (read, iterated)]
    if ratio == (1, 1):
        extents = [extents[0] | extents[1]] * 2
    else:
        _link(dict(enumerate(extents)), [(0, 1, ratio)], mesh)
    return any(
        v.id >= given and _padded_extent(v.type.shape[d], reachable, _tiles(reachable, mesh))
        for (v, d), reachable in zip((read, iterated), extents, strict=True)
    )


def _computed(module: Module, rules: Sequence[OpRule], classes: DimClasses) -> set[int]:
    """Returns the classes of dims of op results that can be computed at a padded extent."""
    found: set[int] = set()
    for op, rule in zip(module.ops, rules, strict=True):
        for v, dims in zip(op.results, rule.results, strict=True):
            found.update(
                classes.of(v, d) for d, f in enumerate(dims) if f != NONE and classes.carries(op, f)
            )
    return found


def _tiles(extents: Collection[int], mesh: MeshShape) -> list[int]:
    """Returns the numbers of tiles the mesh can make and some extent divides into, descending."""
    devices = math.prod(mesh.sizes)
    tiles = [t for t in range(devices, 1, -1) if devices % t == 0]
    return [t for t in tiles if any(n % t == 0 and n > t for n in extents)]


def _padded_extent(n: int, extents: Collection[int], tiles: Sequence[int]) -> int:
    """Returns the extent to pad `n` to; 0 if `n` divides or would grow beyond `MAX_GROWTH`."""
    for t in tiles:
        if n % t == 0:
            return 0
        divisible = [m for m in extents if m % t == 0 and m > n]
        size = min(divisible, default=-(-n // t) * t)
        if size > MAX_GROWTH * n:
            size = -(-n // t) * t
        if size <= MAX_GROWTH * n:
            return size
    return 0
