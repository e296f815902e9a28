"""Execution of a manual region's body on one device's tiles, inside of the emitted `shard_map`.

The body runs op by op: the types checked by jax inside of a `shard_map` (varying and invariant
values) are unknown inside of the emitted one. Collectives of the body name axes of the region's
mesh, and run along axes of the program's mesh.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jax import lax

from partir_search.ir.bind import bind, constant
from partir_search.ir.core import Op
from partir_search.ir.data_flow import Emit
from partir_search.ir.manual import Manual, axis_names
from partir_search.ir.mesh import MeshShape
from partir_search.ir.run_region import run_region

EmitOf = Callable[[Op], Emit]
Params = Mapping[str, Any]


def run_manual(manual: Manual, args: Sequence[Any], emit_of: EmitOf, mesh: MeshShape) -> list[Any]:
    """Results of the body on local tiles, inside of a manual region over `mesh`.

    Args:
      args: local tiles of the operands.
      emit_of: emitter of a region op.
      mesh: the program's mesh.
    """
    body = _Body(manual, emit_of, mesh)
    constants = {v: constant(array) for v, array in manual.constants.items()}
    return run_region(manual.body, args, constants, body.run, emit_of)


@dataclasses.dataclass(frozen=True)
class _Body:
    """Body of a region on one device."""

    manual: Manual
    emit_of: EmitOf
    mesh: MeshShape

    def run(self, op: Op, args: Sequence[Any]) -> Sequence[Any]:
        """Results of an op without regions."""
        inner = op.params.get("manual")
        if inner is not None:
            return _nested(inner, args, self.emit_of, self.mesh)
        params = self.renamed(op.params)
        special = _SPECIAL.get(op.prim)
        return bind(op, params, args) if special is None else special(params, args)

    def renamed(self, params: Params) -> Params:
        """Params with axes of the program's mesh in place of the region's."""
        names = axis_names(params)
        if not names:
            return params
        if "perm" in params:
            axes, pairs = self.permuted(names, params["perm"])
            return {**params, "axis_name": axes, "perm": pairs}
        if all(self.devices[n] == (n,) for n in names):
            return params
        key = "axes" if "axes" in params else "axis_name"
        given = params[key] if isinstance(params[key], tuple | list) else (params[key],)
        known = self.devices
        new = (known[n] if isinstance(n, str) else (n,) for n in given)
        return {**params, key: tuple(itertools.chain.from_iterable(new))}

    @functools.cached_property
    def devices(self) -> Mapping[str, tuple[str, ...]]:
        """Axes of the program's mesh, by axis of the region's mesh."""
        mesh = self.mesh
        return {
            name: tuple(mesh.names[a] for one in on for a in mesh.axes(one))
            for name, on in self.manual.on
        }

    def permuted(
        self, names: Sequence[str], pairs: Sequence[tuple[int, int]]
    ) -> tuple[tuple[str, ...], tuple[tuple[int, int], ...]]:
        """Axes and pairs of a permute on the program's mesh.

        jax numbers devices along several axes in mesh order, whatever the order of the names (as of
        jax 0.12): the pairs are in the order of the region's mesh.
        """
        mesh = self.mesh
        axes = [mesh.index(d) for n, on in self.devices.items() if n in names for d in on]
        sizes = [mesh.sizes[a] for a in axes]
        numbers = np.arange(math.prod(sizes)).reshape(sizes).transpose(np.argsort(axes))
        place = np.argsort(numbers.ravel()).tolist()  # by number in the region's order
        order = tuple(mesh.names[a] for a in sorted(axes))
        return order, tuple((place[i], place[j]) for i, j in pairs)


def _nested(manual: Manual, ins: Sequence[Any], emit_of: EmitOf, mesh: MeshShape) -> list[Any]:
    """Results of a `shard_map` over more axes inside of another one.

    Operands are replicated on the additional axes, and all_gathers replicate the results.
    """
    args = list(ins)
    for i, spec in enumerate(manual.needs):
        for dim, axes in enumerate(spec):
            for axis in itertools.chain.from_iterable(map(mesh.axes, axes)):
                n = args[i].shape[dim] // mesh.sizes[axis]
                at = lax.axis_index(mesh.names[axis]) * n
                args[i] = lax.dynamic_slice_in_dim(args[i], at, n, dim)
    outs = run_manual(manual, args, emit_of, mesh)
    for i, spec in enumerate(manual.makes):
        for dim, axes in enumerate(spec):
            names = tuple(mesh.names[a] for name in axes for a in mesh.axes(name))
            if names:
                outs[i] = lax.all_gather(outs[i], names, axis=dim, tiled=True)
    return outs


def _index(params: Params, _: Sequence[Any]) -> Sequence[Any]:
    return [lax.axis_index(params["axis_name"])]


def _psum(params: Params, args: Sequence[Any]) -> Sequence[Any]:
    return [lax.psum(x, params["axes"]) for x in args]


def _same(_: Params, args: Sequence[Any]) -> Sequence[Any]:
    return args


# Primitives of jax's check of varying axes, without the check; constraints along axes that a
# region leaves to the compiler, along which arrays are replicated in the emitted region; indices
# along several axes, as the primitive takes one.
_SPECIAL: Mapping[str, Callable[[Params, Sequence[Any]], Sequence[Any]]] = {
    "axis_index": _index,
    "psum_invariant": _psum,
    "pvary": _same,
    "sharding_constraint": _same,
}
