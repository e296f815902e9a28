"""Emission of permutes and halos (`lowering/halo.py`) inside a manual region."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from partir_search.ir.halos import HaloedTile
from partir_search.ir.mesh import MeshShape
from partir_search.ir.skewed_schedule import Edge
from partir_search.lowering.reshard_steps import Halo, HaloPermute


def halo_permute(x: Any, step: HaloPermute, sizes: Mapping[str, int], order: Sequence[str]) -> Any:
    """Elements received from a neighbour; zeros on devices without a sender.

    Args:
      sizes: sizes of the axes of `step.pairs` by name, major to minor.
      order: names of the mesh's axes.
    """
    sent = lax.slice_in_dim(x, step.start, step.start + step.length, axis=step.dim)
    return permute(sent, step.pairs, sizes, order)


def permute(x: Any, pairs: Sequence[Edge], sizes: Mapping[str, int], order: Sequence[str]) -> Any:
    """`lax.ppermute` with positions along axes in any order.

    `lax.ppermute` counts positions in the mesh's order of axes, regardless of the order of names.

    Args:
      pairs: (source, target) positions along `sizes` jointly.
      sizes: sizes of the axes by name, major to minor.
      order: names of the mesh's axes.
    """
    names = tuple(sorted(sizes, key=list(order).index))
    places = np.arange(math.prod(sizes.values())).reshape([sizes[n] for n in names])
    places = places.transpose([names.index(n) for n in sizes]).ravel()
    return lax.ppermute(x, names, [(int(places[s]), int(places[t])) for s, t in pairs])


def halo(blocks: Sequence[Any], step: Halo, names: tuple[str, ...]) -> Any:
    """Window assembled from the own tile and received blocks; `HaloedTile` unless `joined`."""
    if not step.joined:
        return _haloed_tile(blocks, step, names)
    x, dim = blocks[0], step.dim
    if step.uniform:
        pieces = list(_pieces(blocks, step, names).values())
        return lax.concatenate(pieces, dim) if len(pieces) > 1 else pieces[0]
    device = lax.axis_index(names)
    size, rank = step.size, x.ndim
    shape = list(x.shape)
    shape[dim] = size
    zero = jnp.zeros((), x.dtype)
    out = jnp.zeros(shape, x.dtype)
    place = lax.broadcasted_iota(jnp.int32, shape, dim)
    for piece in step.pieces:
        config = [(0, 0, 0)] * rank
        config[dim] = (size, size, 0)
        at, to, n = (_table(column, device) for column in zip(*piece.spans, strict=True))
        moved = lax.dynamic_slice_in_dim(
            lax.pad(blocks[piece.block], zero, config), size + at - to, size, dim
        )
        out = jnp.where((place >= to) & (place < to + n), moved, out)
    return out


def _haloed_tile(blocks: Sequence[Any], step: Halo, names: tuple[str, ...]) -> HaloedTile:
    """Own tile and the elements before and after the tile, as three arrays."""
    pieces, dim = _pieces(blocks, step, names), step.dim
    tile = blocks[0].shape[dim]
    at = next(p.spans[0][1] for p in step.pieces if p.block == 0 and p.spans[0][2] == tile)

    def joined(found: list[Any]) -> Any:
        return (lax.concatenate(found, dim) if len(found) > 1 else found[0]) if found else None

    low = joined([x for to, x in pieces.items() if to < at])
    return HaloedTile(dim, low, blocks[0], joined([x for to, x in pieces.items() if to > at]))


def _pieces(blocks: Sequence[Any], step: Halo, names: tuple[str, ...]) -> dict[int, Any]:
    """Pieces of a uniform tile with halo by first element, in order."""
    pieces: dict[int, Any] = {}
    for piece in step.pieces:
        at, to, n = next(span for span in piece.spans if span[2])
        found = lax.slice_in_dim(blocks[piece.block], at, at + n, axis=step.dim)
        if to in pieces:
            mine = jnp.asarray([span[2] > 0 for span in piece.spans])[lax.axis_index(names)]
            found = jnp.where(mine, found, pieces[to])
        pieces[to] = found
    return pieces


def _table(numbers: Sequence[int], device: Any) -> Any:
    """Element `device` of `numbers`; a constant if all are equal."""
    if len(set(numbers)) == 1:
        return jnp.int32(numbers[0])
    return jnp.asarray(numbers, jnp.int32)[device]


def coordinate(mesh: MeshShape, axis: int) -> Any:
    """This device's coordinate along an axis or a diagonal, an int32 scalar."""
    if axis < len(mesh.device_names):
        return lax.axis_index(mesh.names[axis])
    r, c, _ = mesh.triple(axis)
    return (lax.axis_index(mesh.names[r]) + lax.axis_index(mesh.names[c])) % mesh.sizes[axis]
