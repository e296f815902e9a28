"""Manual regions: the user's own `shard_map` inside of a partitioned program.

Operands and results of a region are tiled by its specs; collectives of the body are the user's. The
axes of a region's mesh may have names different from the program's: `Manual.on` maps them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jax.sharding import AxisType

from partir_search.ir.core import Region, TensorType, Value, walk_regions
from partir_search.ir.mesh import MeshShape

Spec = tuple[tuple[str, ...], ...]  # per dim, the tiling axes, major to minor
AxisNames = Mapping[str, tuple[str, ...]]


@dataclasses.dataclass(frozen=True, slots=True)
class OwnCollective:
    """Collective written by the user.

    Attributes:
      kind: all_gather, all_reduce ...
      axes: names of the mesh axes.
      value: name of its value.
      nbytes: bytes on one device, of the larger of operand and result.
      itemsize: bytes of an element.
      times: runs per run of the region.
    """

    kind: str
    axes: tuple[str, ...]
    value: str
    nbytes: int
    itemsize: int
    times: int


@dataclasses.dataclass(frozen=True, slots=True)
class Manual:
    """A `shard_map` as recorded in its jaxpr.

    Attributes:
      axes: (name, size) of its manual axes, axes of outer regions included.
      on: per axis of the region's mesh, in order, the axes and sub-axes of the program's mesh it
        stands for, major to minor.
      needs / makes: specs of operands and results, on the program's axes.
      text: text of its jaxpr, compared for equality.
      body: region on local tiles.
      constants: closed-over arrays.
      collectives: collectives of the body.
    """

    axes: tuple[tuple[str, int], ...]
    on: tuple[tuple[str, tuple[str, ...]], ...]
    needs: tuple[Spec, ...]
    makes: tuple[Spec, ...]
    text: str
    body: Region = dataclasses.field(compare=False, repr=False)
    constants: Mapping[Value, Any] = dataclasses.field(compare=False, repr=False)
    collectives: tuple[OwnCollective, ...] = ()

    @property
    def along(self) -> set[str]:
        """Axes and sub-axes of the program's mesh covered by the region."""
        return {name for _, names in self.on for name in names}

    def program_axes(self, names: Sequence[str]) -> tuple[str, ...]:
        """Axes and sub-axes of the program's mesh for axes of the region's mesh."""
        on = dict(self.on)
        return tuple(one for name in names for one in on[name])

    def size(self, names: Sequence[str]) -> int:
        """Devices along axes of the region's mesh."""
        sizes = dict(self.axes)
        return math.prod(sizes[name] for name in names)

    def inner(self) -> Iterator[Manual]:
        """Regions inside of this one."""
        for region in walk_regions(self.body):
            for op in region.ops:
                if "manual" in op.params:
                    yield op.params["manual"]

    def misplaced(self, mesh: MeshShape) -> str:
        """Reason against running the region on a mesh, or ""."""
        on = dict(self.on)
        for name, size in self.axes:
            if name in on:
                try:
                    found = mesh.size([a for one in on[name] for a in mesh.axes(one)])
                except ValueError as error:
                    return f"lies along {', '.join(on[name])} by its axis {name!r}: {error}"
                if found != size:
                    return f"is over an axis {name!r} of size {size}; the mesh has {mesh.as_dict()}"
        return next(filter(None, (inner.misplaced(mesh) for inner in self.inner())), "")


def axis_names(params: Mapping[str, Any]) -> tuple[str, ...]:
    """Mesh axes named by a collective of a body, without the positional axes of `vmap`."""
    names = params.get("axes") or params.get("axis_name") or ()
    several = names if isinstance(names, tuple | list) else (names,)
    return tuple(name for name in several if isinstance(name, str))


def manual_names(params: Mapping[str, Any]) -> tuple[str, ...]:
    """Manual axes of a `shard_map`, those of outer regions included."""
    mesh, new = params["mesh"], params["newly_manual_axes"]
    kinds = zip(mesh.axis_names, mesh.axis_types, strict=True)
    return tuple(name for name, kind in kinds if name in new or kind == AxisType.Manual)


def spec_of(spec: Any, kind: TensorType, on: AxisNames) -> Spec:
    """PartitionSpec as one tuple of axes of the program's mesh per dim.

    Args:
      on: axes of the program's mesh, by axis of the spec.
    """
    entries = [*spec, *(None,) * (len(kind.shape) - len(spec))]
    dims = (() if e is None else e if isinstance(e, tuple) else (e,) for e in entries)
    return tuple(tuple(axis for name in names for axis in on[name]) for names in dims)
