"""Seconds of collectives: alpha-beta on a ring along the axes involved.

With n devices, payload B (the larger side on one device) and bandwidth b a ring moves
(n-1)/n B for all_gather, reduce_scatter and all_to_all, twice that for all_reduce, in n-1 hops of
alpha each (twice for all_reduce). Thakur et al. 2005, section 2. A ring over several axes is as
slow as the slowest of their links.
"""

from __future__ import annotations

from collections.abc import Sequence

from partir_search.ir.mesh import MeshShape
from partir_search.machine import Machine

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
    return rounds * (share * payload_bytes / bandwidth + (n - 1) * hop)


def sent_bytes(kind: str, payload_bytes: float, n: int) -> float:
    """Bytes that one device sends in a collective over `n` devices."""
    if kind == "collective_permute":
        return payload_bytes
    return _ROUNDS.get(kind, 0) * (n - 1) / n * payload_bytes
