"""Seconds of collectives by the alpha-beta model.

On n devices with payload B (bytes of the larger side on one device), bandwidth b and latency alpha:

- all_gather, reduce_scatter, all_to_all: (n - 1) / n * B / b + hops * alpha.
- all_reduce: twice as much (Thakur et al. 2005, sections 3 and 4).
- collective_permute: B / b + alpha.

`hops` is n - 1 per axis on a torus, with one ring per axis, and ceil(log2 n) behind a switch, where
the data of a device double or halve with each hop. Over several axes the slowest links count.
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
    """Seconds of one collective over `axes` jointly; 0 for kinds without communication.

    Args:
      payload_bytes: bytes of the larger side on one device.
    """
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
    """Sequential steps of an all_gather along axes of the given sizes."""
    return sum(n - 1 for n in sizes) if torus else math.ceil(math.log2(math.prod(sizes)))


def sent_bytes(kind: str, payload_bytes: float, n: int) -> float:
    """Bytes sent by one device in a collective over `n` devices."""
    if kind == "collective_permute":
        return payload_bytes
    return _ROUNDS.get(kind, 0) * (n - 1) / n * payload_bytes
