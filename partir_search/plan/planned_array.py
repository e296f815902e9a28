"""Arguments of a plan as values that print their tiling; treescope draws the tiles."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
from jax.sharding import PartitionSpec

from partir_search.ir.core import Value
from partir_search.ir.mesh import MeshShape
from partir_search.ir.partition import Layout


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class PlannedArray:
    """An argument of a plan, without data.

    Attributes:
      shape, dtype: of the whole array.
      spec: mesh axes of each dim.
      local_shape: shape of a device's tile.
      tiles: slices of the array held by each device, by position in the mesh (row-major).
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    spec: PartitionSpec
    local_shape: tuple[int, ...]
    tiles: Mapping[int, tuple[slice, ...]]
    _type: str

    def __repr__(self) -> str:
        return f"{self._type} {self.spec}"

    def __treescope_ndarray_adapter__(self) -> TilesAdapter:
        return TilesAdapter()

    def __treescope_repr__(self, path: str | None, subtree_renderer: Any) -> Any:
        """One line, which opens to treescope's picture of the tiles."""
        import treescope
        from treescope import rendering_parts as parts

        if not self.shape or 0 in self.shape:
            return parts.build_one_line_tree_node(repr(self), path)
        local = ", ".join(map(str, self.local_shape))
        figure = treescope.render_array_sharding(self).treescope_part
        picture = parts.siblings(f": [{local}] on a device", parts.indented_children([figure]))
        return parts.build_custom_foldable_tree_node(
            label=parts.text(repr(self)),
            contents=parts.fold_condition(expanded=picture),
            path=path,
        )


class TilesAdapter:
    """Adapter through which `treescope.render_array_sharding` reads the tiles of a `PlannedArray`.

    Source: `treescope.ndarray_adapters.NDArrayAdapter`.
    """

    def get_axis_info_for_array_data(self, array: PlannedArray) -> tuple[Any, ...]:
        from treescope.ndarray_adapters import PositionalAxisInfo

        return tuple(PositionalAxisInfo(dim, size) for dim, size in enumerate(array.shape))

    def get_sharding_info_for_array_data(self, array: PlannedArray) -> Any:
        from treescope.ndarray_adapters import ShardingInfo

        return ShardingInfo(
            shard_shape=array.local_shape,
            device_index_to_shard_slices=dict(array.tiles),
            device_type="device",
            fully_replicated=array.local_shape == array.shape,
        )

    def get_array_summary(self, array: PlannedArray, fast: bool) -> str:
        return repr(array)

    def should_autovisualize(self, array: PlannedArray) -> bool:
        """False: there is no data to draw."""
        return False


def planned_array(
    value: Value, spec: PartitionSpec, layout: Layout, mesh: MeshShape
) -> PlannedArray:
    """Argument `value` with its tiles under `layout`."""
    shape = value.type.shape
    local = tuple(n // mesh.size(axes) for n, axes in zip(shape, layout, strict=True))
    tiles = {
        device: tuple(
            slice(None) if n == size else slice(index * n, (index + 1) * n)
            for n, size, index in zip(local, shape, tile_index(layout, mesh, place), strict=True)
        )
        for device, place in enumerate(itertools.product(*map(range, mesh.device_sizes)))
    }
    return PlannedArray(shape, value.type.dtype, spec, local, tiles, str(value.type))


def tile_index(layout: Layout, mesh: MeshShape, place: tuple[int, ...]) -> tuple[int, ...]:
    """Index, in each dim, of the tile held by the device at `place` of the mesh."""
    found = []
    for axes in layout:
        index = 0
        for axis in axes:
            index = index * mesh.sizes[axis] + mesh.coordinate(axis, place)
        found.append(index)
    return tuple(found)
