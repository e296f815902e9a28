"""Seconds of concurrent permutes, from the load of the busiest link.

On a torus (TPUs) a block travels along one axis after the next, the shorter way round, and each
direction of a link has half of the axis's bandwidth. Behind a switch the concurrent permutes of a
device share the bandwidth of its link, and so do permutes with seconds of a profile.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from partir_search.ir.mesh import MeshShape
from partir_search.ir.skewed_schedule import Edge
from partir_search.simulator.target.machine import Machine
from partir_search.simulator.time.collectives import collective_seconds, measured_collective

Ints = npt.NDArray[np.int64]

LinkDirection = tuple[int, int]
"""Position of an axis among the permute's axes, and the sign of the direction."""

Sent = tuple[tuple[Edge, ...], tuple[int, ...], float]
"""A permute: (source, target) pairs, mesh axes, bytes of a block."""


@functools.lru_cache(maxsize=4096)
def link_loads(
    pairs: tuple[Edge, ...], sizes: tuple[int, ...]
) -> dict[LinkDirection, tuple[int, int]]:
    """Load of a torus's links under a permute.

    Args:
      pairs: (source, target) positions along all axes jointly.
      sizes: sizes of the axes.

    Returns:
      By axis and direction, the blocks on the busiest link and the most links on a block's way.
    """
    at = np.array(np.unravel_index(np.array([source for source, _ in pairs], int), sizes))
    goal = np.array(np.unravel_index(np.array([target for _, target in pairs], int), sizes))
    loads: dict[LinkDirection, tuple[int, int]] = {}
    for axis, n in enumerate(sizes):
        ahead = (goal[axis] - at[axis]) % n
        for sign, hops in ((1, ahead), (-1, n - ahead)):
            goes = (ahead > 0) & ((2 * ahead <= n) == (sign > 0))
            if goes.any():
                loads[axis, sign] = _busiest(at[:, goes], hops[goes], axis, sign, sizes)
        at[axis] = goal[axis]
    return loads


def _busiest(at: Ints, hops: Ints, axis: int, sign: int, sizes: tuple[int, ...]) -> tuple[int, int]:
    """Most blocks on a link of an axis in one direction, and most links on a block's way.

    Args:
      at: positions of the blocks, one row per axis.
      hops: links crossed by each block.
      axis: the axis of the links.
      sign: 1 toward higher positions, -1 toward lower ones.
      sizes: sizes of the axes.
    """
    crossed = np.zeros(int(np.prod(sizes)), int)
    place = at.copy()
    for done in range(int(np.max(hops))):
        place[axis] = (at[axis] + sign * done) % sizes[axis]
        links = np.ravel_multi_index(tuple(place[:, hops > done]), sizes)
        crossed += np.bincount(links, minlength=len(crossed))
    return int(np.max(crossed)), int(np.max(hops))


def permute_seconds(sent: Iterable[Sent], mesh: MeshShape, machine: Machine) -> float:
    """Seconds of permutes that start at the same time."""
    spent: dict[object, float] = collections.defaultdict(float)
    latency = 0.0
    for pairs, axes, nbytes in sent:
        kind = "collective_permute"
        if not machine.torus or measured_collective(kind, axes, mesh, machine):
            hop = collective_seconds(kind, 0.0, axes, mesh, machine)
            seconds = collective_seconds(kind, nbytes, axes, mesh, machine)
            spent[None] += seconds - hop
            latency = max(latency, hop)
            continue
        loads = link_loads(pairs, tuple(mesh.sizes[a] for a in axes))
        for (i, sign), (blocks, _) in loads.items():
            one_way = machine.axis_bandwidth(mesh.whole[axes[i]]) / 2
            spent[axes[i], sign] += blocks * nbytes / one_way
        hops = sum(machine.axis_hop(mesh.whole[axes[i]]) * n for (i, _), (_, n) in loads.items())
        latency = max(latency, hops)
    return max(spent.values(), default=0.0) + latency
