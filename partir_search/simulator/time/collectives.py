"""Seconds of collectives: alpha-beta along the axes involved.

With n devices, payload B (the larger side on one device) and bandwidth b all_gather, reduce_scatter
and all_to_all move (n-1)/n B, all_reduce twice that (Thakur et al. 2005, sections 3 and 4). On a
torus a ring goes along one axis after the other, n - 1 hops of alpha each; behind a switch devices
double (or halve) what they have in ceil(log2 n) hops. Several axes are as slow as the slowest of
their links.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from partir_search.ir.mesh import MeshShape
from partir_search.simulator.target.machine import Machine

_ROUNDS = {
    "all_gather": 1,
    "reduce_scatter": 1,
    "all_to_all": 1,
    "collective_permute": 1,
    "all_reduce": 2,
}


def collective_seconds(
    kind: str, payload_bytes: float, axes: Sequence[int], mesh: MeshShape, machine: Machine
) -> float:
    """Seconds of one collective over `axes` jointly, or 0 for a local slice."""
    rounds = _ROUNDS.get(kind, 0)
    n = 1
    bandwidth, hop = float("inf"), 0.0
    for axis in axes:
        n *= mesh.sizes[axis]
        bandwidth = min(bandwidth, machine.axis_bandwidth(mesh.whole[axis]))
        hop = max(hop, machine.axis_hop(mesh.whole[axis]))
    if not rounds or n == 1:
        return 0.0
    if kind == "collective_permute":
        return payload_bytes / bandwidth + hop
    share = (n - 1) / n
    latency = hops([mesh.sizes[axis] for axis in axes], machine.torus) * hop
    return rounds * (share * payload_bytes / bandwidth + latency)


def hops(sizes: Sequence[int], torus: bool) -> int:
    """Steps one after the other of an all_gather along axes of such sizes."""
    return sum(n - 1 for n in sizes) if torus else math.ceil(math.log2(math.prod(sizes)))


def sent_bytes(kind: str, payload_bytes: float, n: int) -> float:
    """Bytes that one device sends in a collective over `n` devices."""
    if kind == "collective_permute":
        return payload_bytes
    return _ROUNDS.get(kind, 0) * (n - 1) / n * payload_bytes
