"""Seconds of permutes that run at once: by what passes over the busiest link.

On a torus (TPUs) a block goes along one axis after the other, the shorter way round, and each
direction of a link has half of the axis's bandwidth. Elsewhere a device sends at the rate of its
link, wherever to, and what is sent at once shares it.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Iterable

import numpy as np

from partir_search.ir.mesh import MeshShape
from partir_search.ir.skewed_schedule import Edge
from partir_search.simulator.target.machine import Machine
from partir_search.simulator.time.collectives import collective_seconds

Way = tuple[int, int]  # position among the axes, direction
Sent = tuple[tuple[Edge, ...], tuple[int, ...], float]  # pairs, axes, bytes of a block


@functools.lru_cache(maxsize=4096)
def loads(pairs: tuple[Edge, ...], sizes: tuple[int, ...]) -> dict[Way, tuple[int, int]]:
    """By axis and direction: blocks on the busiest link, and the most links that one passes.

    Args:
      pairs: positions along axes of these sizes jointly.
    """
    busy: collections.Counter[tuple[Way, tuple[int, ...]]] = collections.Counter()
    longest: dict[Way, int] = {}
    for source, target in pairs:
        at = [int(x) for x in np.unravel_index(source, sizes)]
        goal = [int(x) for x in np.unravel_index(target, sizes)]
        for axis, n in enumerate(sizes):
            there = (goal[axis] - at[axis]) % n
            sign = 1 if 2 * there <= n else -1
            hops = there if sign > 0 else n - there
            for _ in range(hops):
                busy[(axis, sign), tuple(at)] += 1
                at[axis] = (at[axis] + sign) % n
            if hops:
                longest[axis, sign] = max(longest.get((axis, sign), 0), hops)
    most: dict[Way, tuple[int, int]] = {}
    for (way, _), blocks in busy.items():
        most[way] = (max(blocks, most.get(way, (0, 0))[0]), longest[way])
    return most


def permute_seconds(sent: Iterable[Sent], mesh: MeshShape, machine: Machine) -> float:
    """Seconds of permutes that start together."""
    spent: dict[object, float] = collections.defaultdict(float)
    latency = 0.0
    for pairs, axes, nbytes in sent:
        if not machine.torus:
            hop = max(machine.axis_hop(mesh.whole[a]) for a in axes)
            seconds = collective_seconds("collective_permute", nbytes, axes, mesh, machine)
            spent[None] += seconds - hop
            latency = max(latency, hop)
            continue
        ways = loads(pairs, tuple(mesh.sizes[a] for a in axes))
        for (i, sign), (blocks, _) in ways.items():
            one_way = machine.axis_bandwidth(mesh.whole[axes[i]]) / 2
            spent[axes[i], sign] += blocks * nbytes / one_way
        hops = sum(machine.axis_hop(mesh.whole[axes[i]]) * n for (i, _), (_, n) in ways.items())
        latency = max(latency, hops)
    return max(spent.values(), default=0.0) + latency
