"""Shardings on different meshes of equal devices, translated to the program's mesh.

A sharding is reduced to the tile of each device: the index along a dim is a sum over mesh axes of
the device's coordinate times a weight. The weights give the axes tiling the dim, and their order.
A sharding along fewer devices than an axis has splits the axis into sub-axes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any, Union

import numpy as np
import numpy.typing as npt
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from partir_search.ir.mesh import MeshShape
from partir_search.ir.partition import Layout
from partir_search.ir.sub_axis import parse_sub_axis

AnyMesh = Union[Mesh, AbstractMesh]
Tiles = npt.NDArray[np.int64]  # [devices, dims]


def same_axes(mesh: AnyMesh, shape: MeshShape) -> bool:
    """True if a mesh has the names, sizes and order of the user's axes."""
    user = shape.user
    return (tuple(mesh.axis_names), tuple(mesh.axis_sizes)) == (user.names, user.sizes)


def spec_on(sharding: Any, rank: int, mesh: MeshShape, devices: AnyMesh) -> PartitionSpec | None:
    """Spec on `mesh` equal to a sharding of an array with `rank` dims.

    Args:
      mesh: with or without sub-axes.
      devices: the user's mesh.

    Returns:
      None if the sharding is on different devices, or not along axes of the mesh.
    """
    if isinstance(sharding, NamedSharding) and same_axes(sharding.mesh, mesh):
        return sharding.spec
    tiles = _tiles(sharding, rank, devices)
    layout = None if tiles is None else _layout(tiles, mesh.device_sizes)
    if layout is None:
        return None
    entries: list[Any] = [tuple(mesh.names[a] for a in axes) or None for axes in layout]
    if isinstance(sharding, NamedSharding):
        for dim, entry in enumerate(sharding.spec):
            if entry is PartitionSpec.UNCONSTRAINED:
                entries[dim] = entry
    return PartitionSpec(*entries)


def split_for(
    shardings: Iterable[tuple[Any, int]],
    mesh: MeshShape,
    devices: AnyMesh,
    regions: Iterable[str] = (),
) -> MeshShape:
    """The mesh with axes split into sub-axes for shardings on different meshes.

    Args:
      shardings: (sharding, number of dims of the array) pairs.
      devices: the user's mesh.
      regions: axes and sub-axes of `shard_map` regions.
    """
    cuts: dict[str, set[int]] = {}

    def cut_at(name: str, found: Iterable[int]) -> None:
        known = cuts.setdefault(name, set())
        for cut in found:
            if all(cut % c == 0 or c % cut == 0 for c in known):
                known.add(cut)

    for sub in filter(None, map(parse_sub_axis, regions)):
        size = mesh.user.as_dict()[sub.axis]
        ends = (sub.before, sub.before * sub.size)
        cut_at(sub.axis, (cut for cut in ends if 1 < cut < size))
    for sharding, rank in shardings:
        if isinstance(sharding, NamedSharding) and same_axes(sharding.mesh, mesh):
            continue
        tiles = _tiles(sharding, rank, devices)
        for name, found in {} if tiles is None else _cuts(tiles, mesh.user).items():
            cut_at(name, found)
    diagonal = {mesh.names[a] for pair in mesh.diagonals for a in pair}
    kept = {*diagonal, *mesh.sub_axes()}
    sub_axes = {name: _bounds(found, mesh.user, name) for name, found in cuts.items() if found}
    wanted = {name: sizes for name, sizes in sub_axes.items() if name not in kept}
    return mesh.user.split({**wanted, **mesh.sub_axes()}).with_diagonals(
        mesh.diagonal_names, mesh.skewed_state
    )


def _bounds(cuts: Iterable[int], mesh: MeshShape, name: str) -> list[int]:
    ends = [1, *sorted(cuts), mesh.sizes[mesh.index(name)]]
    return [b // a for a, b in itertools.pairwise(ends)]


def _tiles(sharding: Any, rank: int, devices: AnyMesh) -> Tiles | None:
    """[devices of the user's mesh, dims] index of the device's tile; None for a sharding on
    different devices.
    """
    count = math.prod(devices.axis_sizes)
    if isinstance(sharding, NamedSharding):
        return _named_tiles(sharding, rank, devices, count)
    if not isinstance(devices, Mesh) or not hasattr(sharding, "devices_indices_map"):
        return None
    slices = sharding.devices_indices_map((count,) * rank)
    if set(slices) != set(devices.devices.flat):
        return None
    found = [[s.indices(count)[:2] for s in slices[d]] for d in devices.devices.flat]
    return np.array([[a // (b - a) for a, b in each] for each in found]).reshape(count, rank)


def _named_tiles(sharding: NamedSharding, rank: int, devices: AnyMesh, count: int) -> Tiles | None:
    mesh = sharding.mesh
    coordinates = _coordinates(mesh, devices)
    if coordinates is None or len(sharding.spec) > rank:
        return None
    tiles = np.zeros((count, rank), dtype=np.int64)
    for dim, entry in enumerate(sharding.spec):
        if entry is None or entry is PartitionSpec.UNCONSTRAINED:
            continue
        for name in entry if isinstance(entry, tuple) else (entry,):
            tiles[:, dim] = tiles[:, dim] * mesh.shape[name] + coordinates[name]
    return tiles


def axis_tiles(mesh: AnyMesh, names: Sequence[str], devices: AnyMesh) -> Tiles | None:
    """[devices of the user's mesh, names] coordinates of the devices along axes of `mesh`; None if
    `mesh` has different devices.
    """
    coordinates = _coordinates(mesh, devices)
    if coordinates is None:
        return None
    count = math.prod(devices.axis_sizes)
    return np.array([coordinates[name] for name in names], np.int64).reshape(-1, count).T


def _coordinates(mesh: AnyMesh, devices: AnyMesh) -> dict[str, npt.NDArray[np.int64]] | None:
    """Coordinates of the devices of the user's mesh, by axis of `mesh`; None if `mesh` has
    different devices. An abstract mesh has the devices of the user's mesh, in equal order.
    """
    sizes, count = tuple(mesh.axis_sizes), math.prod(devices.axis_sizes)
    at = list(range(count))
    if math.prod(sizes) != count:
        return None
    if isinstance(mesh, Mesh) and isinstance(devices, Mesh):
        place = {d: i for i, d in enumerate(mesh.devices.flat)}
        if set(place) != set(devices.devices.flat):
            return None
        at = [place[d] for d in devices.devices.flat]
    return dict(zip(mesh.axis_names, np.unravel_index(np.array(at), sizes), strict=True))


def _layout(tiles: Tiles, sizes: Sequence[int]) -> Layout | None:
    """Layout on axes of the given sizes; None if the tiles are along no such axes."""
    rank = tiles.shape[1]
    grid = tiles.reshape(*sizes, rank)
    weights = [
        np.take(grid, 1, axis)[(0,) * (len(sizes) - 1)] if n > 1 else np.zeros(rank, np.int64)
        for axis, n in enumerate(sizes)
    ]
    expected = np.zeros_like(grid)
    for axis, n in enumerate(sizes):
        steps = np.arange(n).reshape(-1, *(1,) * (len(sizes) - axis))
        expected = expected + steps * weights[axis]
    if not np.array_equal(expected, grid):
        return None
    layout: list[tuple[int, ...]] = []
    for dim in range(rank):
        axes = [a for a, w in enumerate(weights) if w[dim]]
        axes.sort(key=lambda a: -weights[a][dim])
        minor = 1
        for a in reversed(axes):
            if weights[a][dim] != minor:
                return None
            minor *= sizes[a]
        layout.append(tuple(axes))
    used = [a for axes in layout for a in axes]
    return tuple(layout) if len(set(used)) == len(used) else None


def factorized(tiles: Tiles, mesh: MeshShape) -> tuple[tuple[tuple[int, ...], ...], Layout] | None:
    """Prime factors of each axis of the mesh, major to minor, and the layout on all factors as
    axes; None if tiles lie along no sub-axes.
    """
    ways = [sorted(set(itertools.permutations(_primes(n)))) for n in mesh.sizes]
    for factors in itertools.product(*ways):
        layout = _layout(tiles, [p for each in factors for p in each])
        if layout is not None:
            return factors, layout
    return None


def _cuts(tiles: Tiles, mesh: MeshShape) -> dict[str, list[int]]:
    """By axis, the product of the sizes of the sub-axes before each cut."""
    split = factorized(tiles, mesh)
    if split is None:
        return {}
    factors, layout = split
    place = {a: (d, i) for d, axes in enumerate(layout) for i, a in enumerate(axes)}
    found: dict[str, list[int]] = {}
    first = 0
    for name, each in zip(mesh.names, factors, strict=True):
        for k in range(1, len(each)):
            before, after = place.get(first + k - 1), place.get(first + k)
            follows = before and after and (before[0], before[1] + 1) == after
            if not (follows or before is after is None):
                found.setdefault(name, []).append(math.prod(each[:k]))
        first += len(each)
    return found


def _primes(n: int) -> tuple[int, ...]:
    found, p = [], 2
    while n > 1:
        while n % p == 0:
            found.append(p)
            n //= p
        p += 1
    return tuple(found)
