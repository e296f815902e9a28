"""Context of an op's local form on one device of the mesh."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from partir_search.ir.core import Op
from partir_search.ir.mesh import MeshShape
from partir_search.ir.partition import Layout, Partition
from partir_search.lowering.emit_steps import StepRunner, run_step
from partir_search.lowering.emit_window import coordinate

Shardings = Callable[[Layout], Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Effects:
    """State of ordered effects in one region.

    Attributes:
      sharding: function from a layout to a sharding on the program's mesh.
      tokens: scalars awaited by the next ordered effect of the region; shared by the region's ops.
      step: runs a reshard step on a tile.
    """

    sharding: Shardings
    tokens: list[Any] = dataclasses.field(default_factory=list)
    step: StepRunner = run_step

    def inside(self) -> Effects:
        """Effects of an inner region, with the same tokens to wait for."""
        return Effects(self.sharding, list(self.tokens), self.step)


@dataclasses.dataclass(frozen=True, slots=True)
class Device:
    """`LocalContext` inside a manual region: tile indices come from `lax.axis_index`."""

    partition: Partition
    op: Op
    effects: Effects

    @property
    def mesh(self) -> MeshShape:
        return self.partition.mesh

    def _axes(self, factor: int) -> list[int]:
        p = self.partition
        return [a for a in p.order if p.loops[a][self.op.id] == factor]

    def tiles(self, factor: int) -> int:
        return self.partition.tiles_of(self.op, factor) if factor >= 0 else 1

    def tile_index(self, factor: int) -> Any:
        index: Any = jnp.int32(0)
        mesh = self.partition.mesh
        for axis in self._axes(factor):
            index = index * mesh.sizes[axis] + coordinate(mesh, axis)
        return index

    def is_first(self, factor: int) -> Any:
        return self.tile_index(factor) == 0

    def once(self, run: Callable[[], Sequence[Any]]) -> Sequence[Any]:
        names = self.partition.mesh.device_names
        first = lax.axis_index(names) == 0
        shapes = jax.eval_shape(run)
        outs = lax.cond(first, run, lambda: [jnp.zeros(s.shape, s.dtype) for s in shapes])
        return [
            lax.psum(x.astype(jnp.int32), names).astype(bool)
            if x.dtype == bool
            else lax.psum(x, names)
            for x in outs
        ]

    def last_effects(self) -> Sequence[Any]:
        return self.effects.tokens

    def ran(self, token: Any) -> None:
        self.effects.tokens[:] = [token]

    def shardings(self) -> Sequence[Any]:
        return [self.effects.sharding(self.partition.layout(v)) for _, v in self.op.inputs()]
