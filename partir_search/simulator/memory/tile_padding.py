"""Padding of stored values whose minor dims fill no tile of the memory (`XlaTraits.tile_lanes`).

XLA:TPU stores arrays in tiles of 8 x 128 elements of the two minor dims. Arguments have the order
of dims with the least padding on one device, and so mostly have results of kernels
(`memory/least_padding.py`). Five kinds of values have fixed minor dims:

- of a batched dot, the dims of the two matrices, in the order of less padding on one device;
- operands of batched dots alone (`memory/operand_dims.py`);
- of pieces of a concatenation along the last dim that is stored for a dot, the last two dims, if
  the widest piece fills its lanes (coordinates of 3 numbers beside 256 features);
- of images, batch and features, in the order of less padding (`memory/image_dims.py`);
- of a scatter into rows, the last dims; the first reader copies the result into an order
  without padding, as dots without batch dims copy results of batched dots without further readers.

Slices of a dot's result and elementwise results keep the order of the dims.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

import numpy as np

from partir_search.ir.analysis.def_use import def_use
from partir_search.ir.core import Module, Op, Region, Value
from partir_search.ir.kind import Kind
from partir_search.ir.partition import Partition
from partir_search.ir.role import Role
from partir_search.ir.rule import NONE, OpRule
from partir_search.simulator.arrays import Bools, Floats, Ints
from partir_search.simulator.memory.image_dims import image_dims
from partir_search.simulator.memory.least_padding import LeastPadding, least_padding
from partir_search.simulator.memory.operand_dims import operand_dims, read_by_plain_dots
from partir_search.simulator.memory.stored_operands import piece_shapes
from partir_search.simulator.printing import table
from partir_search.simulator.target.traits import XlaTraits


@dataclasses.dataclass(frozen=True, slots=True)
class MinorDim:
    """A minor dim of a value.

    Attributes:
      size: of the dim.
      unit: elements of a tile along the dim.
      source: size of the dim in the value that decides on the order: the dot's result for a slice;
        a full tile for an image's dim of one element.
    """

    dim: int
    size: int
    unit: int
    source: int


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class TilePadding:
    """Values with minor dims of their own, by id; `lanes` are the elements of a tile's rows."""

    minor: Mapping[int, tuple[MinorDim, ...]]
    ids: Ints
    dims: Ints  # [2, ids]
    sizes: Floats  # [2, ids]
    sources: Floats  # [2, ids]
    tiles: Floats  # [2, ids]
    lanes: int
    either: Bools  # [ids]
    least: LeastPadding

    def __str__(self) -> str:
        rows = [(v, ", ".join(map(str, dims))) for v, dims in self.minor.items()]
        return table("TilePadding", ("value", "minor dims"), rows)

    def padded(self, nbytes: Floats, partition: Partition) -> Floats:
        """Local bytes with padding.

        Args:
          nbytes: [values] local bytes without padding; changed in place.
        """
        if len(self.ids):
            split = np.ones(self.dims.shape)
            for rows, size in zip(partition.axes, partition.mesh.sizes, strict=True):
                split[self.dims == rows.tile_row[self.ids]] *= size
            local, sources = self.sizes / split, self.sources / split
            turned = self.either & (self._factors(sources[::-1]) < self._factors(sources))
            nbytes[self.ids] *= self._factors(np.where(turned, local[::-1], local))
        if len(self.least.ids):
            ids, factors = self.least.factors(partition)
            nbytes[ids] *= factors
        return nbytes

    def _factors(self, local: Floats) -> Floats:
        """[ids] padded over local elements, given [2, ids] local sizes, the innermost first."""
        found: Floats = _padding(local, self.tiles, self.lanes).prod(axis=0)
        return found

    def __contains__(self, v: int) -> bool:
        return v in self.minor or v in self.least

    def of_codes(self, v: int, codes: Ints, mesh_sizes: Floats) -> Floats:
        """[...] padded bytes over bytes of a value tiled by [..., axes] codes."""
        if v in self.least:
            return self.least.of_codes(v, codes, mesh_sizes)
        minors = self.minor[v]
        units = np.array([minor.unit for minor in minors])
        split = [
            np.prod(np.where(codes == minor.dim, mesh_sizes, 1.0), axis=-1) for minor in minors
        ]

        def factors(sizes: Sequence[int], *, turned: bool) -> Floats:
            local = np.array([size / n for size, n in zip(sizes, split, strict=True)])
            tiles = units.reshape(2, *[1] * (local.ndim - 1))
            found: Floats = _padding(local[::-1] if turned else local, tiles, self.lanes).prod(0)
            return found

        sizes, sources = [m.size for m in minors], [m.source for m in minors]
        found = factors(sizes, turned=False)
        if not self.either[np.flatnonzero(self.ids == v)[0]]:
            return found
        better = factors(sources, turned=True) < factors(sources, turned=False)
        return np.where(better, factors(sizes, turned=True), found)


def _padding(local: Floats, tiles: Floats | np.float64, lanes: int) -> Floats:
    """Padded over local elements of a dim; the tiles of few sublanes are no larger than these."""
    few = 2.0 ** np.ceil(np.log2(np.maximum(local, 1.0)))
    tiles = np.where(tiles < lanes, np.minimum(tiles, few), tiles)
    found: Floats = np.ceil(local / tiles) * tiles / local
    return found


def tile_padding(
    module: Module, rules: Sequence[OpRule], traits: XlaTraits, stored: Iterable[Ints]
) -> TilePadding:
    """Padding of a module's values.

    Args:
      rules: per op id.
      stored: ids of stored values; further values are padded by known minor dims alone.
    """
    minor: dict[int, tuple[MinorDim, ...]] = {}
    by_rows: set[int] = set()
    if traits.tile_lanes > 1:
        _find(module.body, rules, traits, minor, by_rows)
        units, uses = (traits.tile_lanes, traits.tile_sublanes), def_use(module)
        for v in list(read_by_plain_dots(module, rules, uses, minor)):
            del minor[v]
        images = image_dims(module, rules)
        wanted = operand_dims(module, rules, uses)
        for v, minors in {**images, **wanted}.items():
            if v not in minor and uses.makers[v] is not None:
                rank = len(module.values[v].type.shape)  # no dim, which no tiling splits
                minor[v] = tuple(
                    MinorDim(
                        dim if dim != NONE else rank, size, unit, size if size > 1 else units[1]
                    )
                    for (dim, size), unit in zip(minors, units, strict=True)
                )
        for v, widest in piece_shapes(module, rules, traits).items():
            shape, lanes = module.values[v].type.shape, traits.tile_lanes
            if v not in minor and shape[-1] % lanes and not widest[-1] % lanes:
                minor[v] = tuple(
                    MinorDim(len(shape) - n, shape[-n], unit, widest[-n])
                    for n, unit in enumerate(units, 1)
                )
    of_order = {v for ids in stored for v in ids.tolist()} | {v.id for v in module.body.args}
    values = (
        module.values[v] for v in sorted(of_order) if v not in minor and traits.tile_lanes > 1
    )
    least = least_padding(values, traits.tile_sublanes, traits.tile_lanes)
    held = [(v, m) for v, m in minor.items() if module.values[v].type.nbytes]

    def column(name: str, number: int) -> list[int]:
        return [getattr(m[number], name) for _, m in held]

    dims, sizes, sources, tiles = (
        np.array([column(name, 0), column(name, 1)]) for name in ("dim", "size", "source", "unit")
    )
    return TilePadding(
        minor=dict(held),
        ids=np.array([v for v, _ in held], dtype=np.int64),
        dims=dims.astype(np.int64),
        sizes=sizes.astype(np.float64),
        sources=sources.astype(np.float64),
        tiles=tiles.astype(np.float64),
        lanes=traits.tile_lanes,
        either=np.array([v not in by_rows for v, _ in held], dtype=np.bool_),
        least=least,
    )


def _find(
    region: Region,
    rules: Sequence[OpRule],
    traits: XlaTraits,
    minor: dict[int, tuple[MinorDim, ...]],
    scattered: set[int],
) -> None:
    """Adds the values of a region and of all regions inside; `scattered` are copied by readers."""
    for op in region.ops:
        rule = rules[op.id]
        for inner in op.regions:
            _find(inner, rules, traits, minor, scattered)
        for result, dims in zip(op.results, rule.results, strict=False):
            shape = result.type.shape
            own = _own_dims(op, rule, dims, shape)
            kept = None if own else _kept(op, rule, result, minor, scattered)
            lane, sublane = own or ([m.dim for m in kept] if kept else (NONE, NONE))
            if own and rule.role is Role.SCATTER:
                scattered.add(result.id)
            if lane != NONE:
                sources = [m.source for m in kept] if kept else [shape[lane], shape[sublane]]
                minor[result.id] = (
                    MinorDim(lane, shape[lane], traits.tile_lanes, sources[0]),
                    MinorDim(sublane, shape[sublane], traits.tile_sublanes, sources[1]),
                )


def _own_dims(
    op: Op, rule: OpRule, dims: Sequence[int], shape: Sequence[int]
) -> tuple[int, int] | None:
    """Innermost and second dim of a batched dot's or a scatter's result."""
    if rule.role is Role.SCATTER and dims and shape[-1] > 1:
        rows = dims[-1] >= 0 and dims[-1] in rule.operands[-1]  # of the updates
        return (len(shape) - 1, len(shape) - 2) if rows and len(shape) > 1 else None
    if rule.role is not Role.DOT or len(op.operands) == 1:
        return None
    shared = set.intersection(*map(set, rule.operands))
    summed = shared - set(dims)  # an outer product is no kernel of its own
    free = sorted((d for d, f in enumerate(dims) if f not in shared), key=lambda d: -shape[d])
    match free:
        case [large, small] if summed and len(dims) > len(free):
            return large, small
    return None


def _kept(
    op: Op,
    rule: OpRule,
    result: Value,
    minor: Mapping[int, tuple[MinorDim, ...]],
    scattered: Set[int],
) -> tuple[MinorDim, ...] | None:
    """Minor dims of the operand whose order an elementwise op's or a slice's result keeps.

    The first operand of equal rank with known ones.
    """
    if rule.kind is Kind.ELEMENTWISE or rule.role is Role.SLICE:
        for operand in _operands(op):
            if operand.id not in minor or operand.id in scattered:
                continue
            if len(operand.type.shape) == len(result.type.shape):
                return minor[operand.id]
    return None


def _operands(op: Op) -> Iterator[Value]:
    return (x for x in op.operands if isinstance(x, Value))
