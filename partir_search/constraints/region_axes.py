"""Axes of a user's `shard_map` region as axes and sub-axes of the program's mesh.

A region over `Mesh(devices.reshape(2, 4), ("x", "y"))` in a program on 4 x 2 devices (`data`,
`model`) has `x` along `data:(1)2` and `y` along `data:(2)2` and `model`: each device has the same
coordinates under both names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from partir_search.constraints.foreign import AnyMesh, axis_tiles, factorized, same_axes
from partir_search.ir.mesh import MeshShape
from partir_search.ir.sub_axis import SubAxis


def region_axes(
    region: AnyMesh, names: Sequence[str], mesh: MeshShape, devices: AnyMesh
) -> Mapping[str, tuple[str, ...]]:
    """Axes or sub-axes of `mesh`, major to minor, of each named axis of a region's mesh.

    Args:
      region: the mesh of the region.
      mesh: the shape of the user's mesh, `devices`.

    Raises:
      ValueError: devices along the region's axes do not lie along axes or sub-axes of the mesh.
    """
    user = mesh.user
    by_name = {name: (name,) for name in names}
    if same_axes(region, user):
        return by_name
    tiles = axis_tiles(region, names, devices)
    found = None if tiles is None else factorized(tiles, user)
    if found is not None:
        factors, layout = found
        digits = _digits(user, factors)
        return {
            name: _merged([digits[i] for i in axes], user)
            for name, axes in zip(names, layout, strict=True)
        }
    sizes = dict(zip(region.axis_names, region.axis_sizes, strict=True))
    if all(user.as_dict().get(name) == sizes[name] for name in names):
        return by_name
    over = ", ".join(f"{name}:{sizes[name]}" for name in names)
    reason = (
        "has other devices, or another number of devices, than"
        if tiles is None
        else "has devices in an order that lies along no axes or sub-axes of"
    )
    raise ValueError(
        f"is over axes <{over}> of a mesh that {reason} the mesh<{user}> of the program; pass"
        " auto_partition a mesh of the same devices in the same order, or give the region axes of"
        " the program's mesh"
    )


def _digits(mesh: MeshShape, factors: Sequence[Sequence[int]]) -> list[SubAxis]:
    """Sub-axes of all factors of all axes, in order."""
    digits: list[SubAxis] = []
    for name, sizes in zip(mesh.names, factors, strict=True):
        before = 1
        for size in sizes:
            digits.append(SubAxis(name, before, size))
            before *= size
    return digits


def _merged(digits: Sequence[SubAxis], mesh: MeshShape) -> tuple[str, ...]:
    """Names of sub-axes, consecutive digits of one axis as one; of whole axes by their name."""
    merged: list[SubAxis] = []
    for digit in digits:
        last = merged[-1] if merged else None
        if last and (last.axis, last.before * last.size) == (digit.axis, digit.before):
            merged[-1] = last._replace(size=last.size * digit.size)
        else:
            merged.append(digit)
    whole = mesh.as_dict()
    return tuple(d.axis if d.size == whole[d.axis] else d.name for d in merged)
