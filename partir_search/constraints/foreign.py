"""Shardings on other meshes of the same devices, in terms of the program's mesh.

Only what a device holds counts: the index of its tile along each dim, which is a sum over axes of
the device's coordinate times a weight. The weights say which axes tile a dim, and in which order.
Where a sharding takes some devices of an axis together, the axis falls into parts.
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

AnyMesh = Union[Mesh, AbstractMesh]
Tiles = npt.NDArray[np.int64]  # [devices, dims]


def own(sharding: NamedSharding, mesh: MeshShape) -> bool:
    """Tells whether a sharding is on a mesh of the same axes."""
    user = mesh.user
    return (tuple(sharding.mesh.axis_names), tuple(sharding.mesh.axis_sizes)) == (
        user.names,
        user.sizes,
    )


def spec_on(sharding: Any, rank: int, mesh: MeshShape, devices: AnyMesh) -> PartitionSpec | None:
    """The spec that a sharding of an array of `rank` dims has on `mesh`.

    Args:
      mesh: may have axes in parts.
      devices: the user's mesh.

    Returns:
      None if the sharding is on other devices, or tiles along no axes of the mesh.
    """
    if isinstance(sharding, NamedSharding) and own(sharding, mesh):
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
    shardings: Iterable[tuple[Any, int]], mesh: MeshShape, devices: AnyMesh, whole: Iterable[str]
) -> MeshShape:
    """The mesh with axes split where shardings on other meshes tile along parts of them.

    Args:
      shardings: each with the number of dims of the array.
      devices: the user's mesh.
      whole: axes that must not be split.
    """
    cuts: dict[str, set[int]] = {}
    for sharding, rank in shardings:
        if isinstance(sharding, NamedSharding) and own(sharding, mesh):
            continue
        tiles = _tiles(sharding, rank, devices)
        for name, found in {} if tiles is None else _cuts(tiles, mesh.user).items():
            known = cuts.setdefault(name, set())
            for cut in found:
                if all(cut % c == 0 or c % cut == 0 for c in known):
                    known.add(cut)
    diagonal = {mesh.names[a] for pair in mesh.diagonals for a in pair}
    kept = {*whole, *diagonal, *mesh.sub_axes()}
    parts = {name: _bounds(found, mesh.user, name) for name, found in cuts.items() if found}
    wanted = {name: sizes for name, sizes in parts.items() if name not in kept}
    return mesh.user.split({**wanted, **mesh.sub_axes()}).with_diagonals(
        mesh.diagonal_names, mesh.skewed_state
    )


def _bounds(cuts: Iterable[int], mesh: MeshShape, name: str) -> list[int]:
    ends = [1, *sorted(cuts), mesh.sizes[mesh.index(name)]]
    return [b // a for a, b in itertools.pairwise(ends)]


def _tiles(sharding: Any, rank: int, devices: AnyMesh) -> Tiles | None:
    """[devices of the user's mesh, dims] index of the tile that each device holds; None if the
    sharding is on others.
    """
    count = math.prod(devices.axis_sizes)
    if isinstance(sharding, NamedSharding):
        return _named_tiles(sharding, rank, devices, count)
    if not isinstance(devices, Mesh) or not hasattr(sharding, "devices_indices_map"):
        return None
    held = sharding.devices_indices_map((count,) * rank)
    if set(held) != set(devices.devices.flat):
        return None
    found = [[s.indices(count)[:2] for s in held[d]] for d in devices.devices.flat]
    return np.array([[a // (b - a) for a, b in each] for each in found]).reshape(count, rank)


def _named_tiles(sharding: NamedSharding, rank: int, devices: AnyMesh, count: int) -> Tiles | None:
    mesh = sharding.mesh
    sizes, at = tuple(mesh.axis_sizes), list(range(count))
    if math.prod(sizes) != count or len(sharding.spec) > rank:
        return None
    if isinstance(mesh, Mesh) and isinstance(devices, Mesh):
        place = {d: i for i, d in enumerate(mesh.devices.flat)}
        if set(place) != set(devices.devices.flat):
            return None
        at = [place[d] for d in devices.devices.flat]
    coordinates = dict(zip(mesh.axis_names, np.unravel_index(np.array(at), sizes), strict=True))
    tiles = np.zeros((count, rank), dtype=np.int64)
    for dim, entry in enumerate(sharding.spec):
        if entry is None or entry is PartitionSpec.UNCONSTRAINED:
            continue
        for name in entry if isinstance(entry, tuple) else (entry,):
            tiles[:, dim] = tiles[:, dim] * mesh.shape[name] + coordinates[name]
    return tiles


def _layout(tiles: Tiles, sizes: Sequence[int]) -> Layout | None:
    """Axes of these sizes per dim, major to minor; None if others would be needed."""
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


def _cuts(tiles: Tiles, mesh: MeshShape) -> dict[str, list[int]]:
    """Sizes of axes before each cut."""
    ways = [sorted(set(itertools.permutations(_primes(n)))) for n in mesh.sizes]
    for factors in itertools.product(*ways):
        sizes = [p for each in factors for p in each]
        layout = _layout(tiles, sizes)
        if layout is None:
            continue
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
    return {}


def _primes(n: int) -> tuple[int, ...]:
    found, p = [], 2
    while n > 1:
        while n % p == 0:
            found.append(p)
            n //= p
        p += 1
    return tuple(found)
