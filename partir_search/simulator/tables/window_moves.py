"""Reshards of a value to windows (tiles with halos); see `lowering/reshard_builder.py`."""

from __future__ import annotations

import dataclasses

from partir_search.ir.core import Op, Value
from partir_search.ir.mesh import MeshShape
from partir_search.ir.rule import OpRule
from partir_search.lowering.halo import keeps_tile, shape_after, window_steps
from partir_search.lowering.local_ir import Reshard
from partir_search.lowering.local_value import LocalValue
from partir_search.lowering.reshard_steps import Halo, HaloPermute
from partir_search.simulator.tables.ways import Way


def window_moves(value: Value, op: Op, way: Way, mesh: MeshShape, rule: OpRule) -> list[Reshard]:
    """Instructions that take the windows of a way, once the value is in the way's target."""
    shape = tuple(
        n // mesh.size(axes) for n, axes in zip(value.type.shape, way.target, strict=True)
    )
    local = LocalValue(-1, value, way.target, way.keep, shape)
    found: list[Reshard] = []
    for w in way.windows:
        extent, tiled = value.type.shape[w.dim], bool(local.layout[w.dim])
        tile, blocks = local.shape[w.dim], list[LocalValue]()
        for step in window_steps(w, extent, tiled, local.layout, local.partial):
            if isinstance(step, Halo) and rule.accepts_haloed_tile and w is way.windows[-1]:
                step = dataclasses.replace(step, joined=not keeps_tile(step, tile))
            target = LocalValue(
                -1, value, step.layout, step.partial, shape_after(local.shape, step)
            )
            fetches = isinstance(step, HaloPermute)
            received = () if fetches else tuple(blocks)
            found.append(Reshard(step, local, target, op, received=received))
            if fetches:
                blocks.append(target)
            else:
                local = target
    return found
